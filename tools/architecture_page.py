"""The page of the architecture, from the import map and the docstrings of the packages."""

import ast
from collections.abc import Iterable
from functools import cache

from docstrings import assigned_names, inline
from fedtailor.core.text import markdown_table
from import_map import LAYERS, MAY_IMPORT, ROOT, modules, package_of

INTRODUCTION = """# Architecture

The code is divided into packages: the folders and single modules of `src/fedtailor`. Imports go one
way, from a package to packages below it. A test checks every import against this map, and that
there are no circular imports.

Everything may import `core`.

**The idea.** An algorithm is the program of *one* client plus the arithmetic of the server, written
as pure functions over trees of tensors. Engines decide how many clients run at once. No algorithm
has a client axis, padding, a device or a loop over clients. Where tensors live is decided in
`core/devices.py`: see [Devices](../howto/devices.md).

## The packages

| package | what it is | it may import |
|---|---|---|
"""
DATA_FLOW = """## How the data flow

Two words say which example is meant: its *position* in the data set, and its *row* in the table of
its client. Every stop is a value that can be printed, saved and compared. All examples go this way
first:"""

TRAINING_FLOW = """A training example goes on into a model:"""

TEST_FLOW = """A test example goes on into a score in the run folder. No method sees it before it
predicts:"""

UPLOAD_FLOW = """The way of one upload, from the method at a client to the method at the server.
Nothing flows back except a download."""

OPTION_FLOW = """The way of one option, such as `federation.server_optimizer`, from a file or
the command line to where it has its effect. Nothing is read from the file a second time."""

CALL_CHAIN = """## From the command to the gradient

The main calls of `fedtailor run -a fedavg` with the engine `reference` (`auto` takes another). Some
short functions between them are left out. Before them, `assemble` builds method, data and model."""

PATH = (
    ("data.dataset:Dataset", "the examples of a data set, decoded once and mapped into memory"),
    (
        "data.partitions.base:Partition",
        "who has which example: positions in the data set by client",
    ),
    (
        "data.division:Division",
        "the positions of each client, split into training, validation and test",
    ),
    (
        "data.build:DividedData",
        "the same with features of the cells of tables, or with corrupted copies of images",
    ),
    ("core.federation:Federation", "the same as tensors, with the task of every client"),
    (
        "core.engine:Job",
        "a client's positions, and what it keeps, for the program that an engine runs",
    ),
)
"""The stops of every example, in order: ``module:name``, and what it is."""

TRAINING_PATH = (
    (
        "simulation.engines.containment:make_private",
        "a copy of the client's training and validation examples: methods see no others",
    ),
    ("simulation.programs:ClientInputs", "their rows in it, with the state of the client"),
    (
        "core.federation:ClientData",
        "what the method receives: tables of these examples",
    ),
    (
        "training.batches:plan_batches",
        "the rows of every mini-batch, in an order that follows from a key",
    ),
    ("training.batches:Batches", "the mini-batches, with inputs as the model takes them"),
    ("training.one_client:GradientSteps", "steps of the optimizer, each by the gradient of one"),
)
"""The further stops of a training example."""

TEST_PATH = (
    ("core.federation:ExampleSet", "the client's test examples: rows of the table of all"),
    ("training.batches:gather", "some of them, with inputs as the model takes them"),
    ("core.algorithm:Algorithm.predict", "logits"),
    ("core.scores:Scores", "sums over examples, from which every metric is computed"),
    (
        "simulation.programs:PersonalizeOutput",
        "with the model that was scored, and numbers about it",
    ),
    (
        "simulation.engines.containment:run_job",
        "copies what a program returns, and refuses what cannot be stored or sent",
    ),
    ("simulation.clients:PersonalizeReply", "what leaves the client: scores and numbers"),
    ("simulation.report:Evaluation", "the scores of all clients by one kind of model"),
    ("simulation.report:RoundReport", "all evaluations of a round"),
    (
        "experiment.writer:RunWriter.add_round",
        "the run folder: scores by round and client",
    ),
)
"""The further stops of a test example."""

UPLOAD_PATH = (
    ("core.algorithm:Algorithm.local_update", "the work of one client in a round"),
    ("core.algorithm:ClientUpdate", "its result: a new client state, an upload, and a model"),
    (
        "simulation.programs:train_program",
        "scores the model, and returns the rest as it is",
    ),
    (
        "simulation.engines.containment:run_job",
        "copies it, and refuses what cannot be stored or sent",
    ),
    (
        "simulation.clients:TrainReply",
        "what leaves the client, with what is wrong with its new state, which stays",
    ),
    (
        "simulation.server:RunServer.receive",
        "the border of the server: each upload is checked and used whole, or not at all",
    ),
    (
        "core.reduction:FieldSum",
        "adds it to those of others as it arrives; engines with several places do so there",
    ),
    (
        "core.message:Reduced",
        "what the server sees of a field of all uploads: a mean, a sum, or single values",
    ),
    ("core.algorithm:Algorithm.aggregate", "the arithmetic of the server: a new server state"),
    ("simulation.report:RunState", "what the next round, and a checkpoint, begins with"),
    ("core.algorithm:Download", "what a client receives in the next round, or to personalize"),
)
"""The stops of an upload, in order."""

OPTION_PATH = (
    ("experiment.config:read_settings", "the file, as nested tables of plain values"),
    (
        "cli.options:with_config_flags",
        "flags of a command, which are the fields with the mark `Flag`; `--set` names any field",
    ),
    (
        "experiment.config:make_config",
        "the tables with what the command line puts in place; unknown sections are refused",
    ),
    (
        "core.options:build",
        "a section: each value is checked against the annotation of its field; "
        "`core.schedule:read_schedule` does so for `[federation]` and `[evaluation]`",
    ),
    ("experiment.config:Config", "the whole experiment, which never changes again"),
    (
        "experiment.assembly:assemble",
        "what needs the data: checks of options against it, and the values that `auto` stands for",
    ),
    (
        "experiment.assembly:PreparedRun",
        "its resolved configuration, which the run folder has as `experiment.toml`",
    ),
    (
        "simulation.server:RunServer",
        "where options of a schedule have their effect; those of `[training]` are at "
        "`algorithm.training`, and those of `[engine]` at `build_engine`",
    ),
)
"""The stops of an option, in order."""

CALLS = (
    ("cli.main:main", "finds the command, and turns errors into sentences and exit codes"),
    ("cli.run:run_", "reads the options"),
    ("experiment.run:run", "runs an experiment, once per seed"),
    ("experiment.run:run_seed", "writes the run folder while the rounds run"),
    (
        "simulation.rounds:federate",
        "the round loop: draw a cohort, train, check uploads, aggregate, evaluate",
    ),
    ("simulation.clients:LocalClients.train", "hands the clients' programs to the engine"),
    ("simulation.engines.reference:Reference.map", "runs a program for every client"),
    (
        "simulation.engines.containment:run_job",
        "runs it for one client; whatever it raises is that client's failure",
    ),
    ("simulation.programs:train_program", "a client's round: local update, and its evaluation"),
    ("algorithms.fedavg:FedAvg.local_update", "the method"),
    ("training.blocks:train", "trains parameters by mini-batches"),
    ("training.one_client:train_one", "the loop over the batches of one client"),
    ("training.one_client:GradientSteps.take", "one step of the optimizer"),
    (
        "training.one_client:GradientSteps.evaluate",
        "the loss of a batch, and its gradients",
    ),
)
"""The calls from the command to the first gradient."""

PLACES = (
    (
        "a method",
        ["src/fedtailor/algorithms/", "algorithms:ALGORITHMS"],
        "one file, and one line of the table; its module docstring becomes its page",
        "tests/golden/",
    ),
    (
        "something that serves one method only",
        ["src/fedtailor/algorithms/"],
        "a private module beside the method, such as `_beta_search.py`",
        "tests/algorithms/",
    ),
    (
        "a building block, or a loss, of clients' programs",
        ["src/fedtailor/training/"],
        "a function that serves several methods",
        "tests/training/",
    ),
    (
        "a metric",
        ["core.metrics:METRICS", "core.scores:Scores"],
        "a row of the table, with a function of the sums of one client or class; new sums, which "
        "add up over batches, are fields of `Scores`",
        "tests/core/test_metrics.py",
    ),
    (
        "which rounds are evaluated",
        ["core.schedule:Schedule.evaluation_is_due"],
        "a condition on the number of the round",
        "tests/simulation/test_rounds.py",
    ),
    (
        "a data set",
        ["src/fedtailor/data/datasets/", "data.datasets:DATASETS"],
        "a function `load(files)` that returns a `Dataset`, and its row of the table, which "
        "has its downloads",
        "tests/data/",
    ),
    (
        "a reader of a file format",
        ["src/fedtailor/data/datasets/", "src/fedtailor/data/own/"],
        "`datasets` for the files of known data sets, `own` for those of users",
        "tests/data/",
    ),
    (
        "a partition",
        ["src/fedtailor/data/partitions/", "data.partitions:PARTITIONS"],
        "a subclass of `Partition`, and one line of the table",
        "tests/data/partitions/",
    ),
    (
        "a model",
        ["src/fedtailor/models/", "models:MODELS"],
        "a function that returns a model, and one line of the table",
        "tests/models/",
    ),
    (
        "an engine",
        [
            "src/fedtailor/simulation/engines/",
            "simulation.engines:ENGINES",
            "simulation.engines:EngineOptions",
            "simulation.engines.build:build_engine",
        ],
        "a class with the methods of `core.engine:Engine`, one line of the table, its name among "
        "the options, and a line that builds it",
        "tests/simulation/engines/",
    ),
    (
        "a command",
        ["src/fedtailor/cli/main.py", "src/fedtailor/cli/show/"],
        "a function that parses, calls one function, and prints; what is printed is made in `show`",
        "tests/cli/",
    ),
    (
        "an option",
        ["experiment.config:Config"],
        "a field with a default and a docstring in the dataclass of its section",
        "tests/experiment/test_config.py",
    ),
    (
        "a check of every method",
        ["src/fedtailor/testing/"],
        "a check that answers in sentences; users run it too, by `fedtailor.check_algorithm`",
        "tests/contract/",
    ),
    (
        "an experiment of a paper",
        ["experiments/"],
        "a TOML file of the paper; `python -m experiments` runs it",
        "tests/papers/",
    ),
)
"""What one may want to add, where it goes, how, and where its tests are."""

BESIDE = {
    "tests": "one folder for each package; `tests/golden` compares methods with their papers, "
    "written again in NumPy",
    "docs": "these pages; `make docs` writes those that follow from code or records",
    "tools": "the writers of pages, and the map of imports",
    "benchmarks": "measurements of speed, and records of finished studies",
    "experiments": "the experiments of four papers: their files, our records, and the program that "
    "runs them",
}


def pages() -> dict[str, str]:
    """Return the text of the page by its path below docs."""
    packages = [package for layer in layers() for package in layer]
    lines = [f"| `{name}` | {sentence(name)} | {imports(name)} |" for name in packages]
    parts = [INTRODUCTION + "\n".join(lines)]

    folders = [f"* `{folder}`: {words}" for folder, words in BESIDE.items()]
    parts += ["Other folders:", "\n".join(folders)]

    parts += [DATA_FLOW, numbered(PATH), TRAINING_FLOW, numbered(TRAINING_PATH)]
    parts += [TEST_FLOW, numbered(TEST_PATH), UPLOAD_FLOW, numbered(UPLOAD_PATH)]
    parts += [OPTION_FLOW, numbered(OPTION_PATH)]
    parts += [CALL_CHAIN, numbered(CALLS), "## Where do I put ...?"]
    rows = []
    for what, targets, how, tests in PLACES:
        places = ", ".join(link(target) for target in targets)
        rows.append([what, places, how, link(tests)])

    parts.append(markdown_table(["to add", "where", "how", "tests"], rows))
    return {"reference/architecture.md": "\n\n".join(parts) + "\n"}


def numbered(stops: Iterable[tuple[str, str]]) -> str:
    """Return a numbered list of links with words."""
    lines = enumerate(stops, start=1)
    return "\n".join(f"{number}. {link(target)}: {words}" for number, (target, words) in lines)


def layers() -> list[list[str]]:
    """Return the packages that exist, by layer."""
    there = {package_of(module) for module in modules()}
    return [
        [package for package in layer if package in there] for layer in LAYERS if set(layer) & there
    ]


def sentence(package: str) -> str:
    """Return the first paragraph of a package's docstring."""
    docstring = ast.get_docstring(ast.parse(modules()[package].read_text())) or ""
    return inline(docstring.split("\n\n")[0].replace("\n", " "))


def imports(package: str) -> str:
    """Say what a package may import."""
    there = {package_of(module) for module in modules()}
    places = [place for place in sorted(MAY_IMPORT[package]) if package_of(place) in there]
    return ", ".join(f"`{place}`" for place in places) or "nothing"


def link(target: str) -> str:
    """Return a link to a path of the repository, or to the source of ``module:name``.

    Both must exist.
    """
    if ":" not in target:
        path = ROOT / target
        shown = target.removeprefix("src/fedtailor/")
    else:
        module, _, name = target.partition(":")
        path = modules()[module]
        shown = name
        if name not in definitions(module):
            raise ValueError(f"{path} defines no {name}: correct tools/architecture_page.py")
    if not path.exists():
        raise ValueError(f"there is no {path}: correct tools/architecture_page.py")
    return f"`{shown}` (`{path.relative_to(ROOT).as_posix()}`)" if ":" in target else f"`{shown}`"


@cache
def definitions(module: str) -> frozenset[str]:
    """Return the names that a module defines, and those of its classes as ``Class.name``."""
    names: set[str] = set()
    for statement in ast.parse(modules()[module].read_text()).body:
        names.update(_defined_names(statement))
        if isinstance(statement, ast.ClassDef):
            members = [name for inner in statement.body for name in _defined_names(inner)]
            names.update(f"{statement.name}.{member}" for member in members)

    return frozenset(names)


def _defined_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]

    return assigned_names(statement)
