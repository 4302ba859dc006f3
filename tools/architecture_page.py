"""The page docs/architecture.md and its picture, from the import map and the docstrings of the
packages.
"""

import ast
import html
from functools import cache

from docstrings import inline
from import_map import LAYERS, MAY_IMPORT, ROOT, modules, package_of

INTRODUCTION = """# Architecture

The code is divided into packages: the folders and single modules of `src/fedtailor`. Imports go one way, from a package
to packages below it. A test checks every import against this map, and that there are no circular imports.

![The packages, and which imports which](architecture.svg)

An arrow leads from a package to a package that it imports; arrows implied by others are left out. Everything may
import `core`.

**The idea.** An algorithm is the program of *one* client plus the arithmetic of the server, written as pure functions
over trees of tensors. Engines decide how many clients run at once. No algorithm has a client axis, padding, a device or
a loop over clients. Where tensors live is decided in [`core/devices.py`](../src/fedtailor/core/devices.py): see
[Devices](running.md#devices).

## The packages

| package | what it is | it may import |
|---|---|---|
"""
PATH = (
    ("data.dataset:Dataset", "the examples of a data set, decoded once and mapped into memory"),
    (
        "data.partitions.base:Partition",
        "who has which example: positions in the data set by client",
    ),
    (
        "data.division:Division",
        "the examples of each client, split into training, validation and test",
    ),
    ("core.federation:Federation", "the same as tensors, with the task of every client"),
    (
        "core.federation:ClientData",
        "what the program of one client receives; it holds no test examples",
    ),
    ("training.batches:Batches", "mini-batches, in an order that follows from a key"),
    ("core.algorithm:Algorithm.local_update", "the work of one client in a round"),
    ("core.algorithm:ClientUpdate", "its result: a new client state, and an upload"),
    (
        "core.message:Reduced",
        "what the server sees of a field of all uploads: a mean, a sum, or single values",
    ),
    ("core.algorithm:Algorithm.aggregate", "the arithmetic of the server: a new server state"),
    ("core.algorithm:Download", "what a client receives in the next round, or to personalize"),
    (
        "core.algorithm:Algorithm.personalize",
        "a client's own model, from a download and its training examples",
    ),
    ("core.algorithm:Algorithm.predict", "logits for inputs"),
    ("core.metrics:Scores", "sums over test examples, from which every metric is computed"),
    (
        "simulation.report:RoundReport",
        "all that a round gives: scores, training metrics, bytes, events",
    ),
    (
        "experiment.records:RunFolder",
        "the folder of a run: configuration, scores by round and client, models",
    ),
)
"""The stops of the data, in order: ``module:name``, and what it is."""

CALLS = (
    ("cli.main:main", "finds the command, and turns errors into sentences and exit codes"),
    ("cli.run:run_", "reads the options"),
    ("experiment.run:run", "runs an experiment, once per seed"),
    ("experiment.run:run_seed", "writes the run folder while the rounds go on"),
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
    ("training.blocks:_Train.forward", "the same as a function that can be stacked over clients"),
    ("training.one_client:train_one", "the loop over the batches of one client"),
    ("training.one_client:GradientSteps.take", "one step of the optimizer"),
    (
        "training.one_client:GradientSteps.loss_and_gradients",
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
        ["core.metrics:Scores", "core.metrics:per_client", "core.metrics:HIGHER_IS_BETTER"],
        "sums that add up over batches, the figure computed from them, and its direction",
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
        ["src/fedtailor/data/datasets/", "data.datasets.known:DATASETS"],
        "a function `load(files)` that returns a `Dataset`, and its row of the table, with downloads",
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
            "simulation.engines.options:EngineOptions",
            "simulation.engines.build:build_engine",
        ],
        "a class with the methods of `core.engine:Engine`, one line of the table, its name among the options, and a "
        "line that builds it",
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
    "tests": "one folder for each package; `tests/golden` compares methods with their papers, written again in NumPy",
    "docs": "these pages; `make docs` writes those that follow from code or records",
    "tools": "the writers of pages, the map of imports, the check for packed code",
    "benchmarks": "measurements of speed, and records of finished studies",
    "experiments": "the experiments of four papers: their files, our records, and the program that runs them",
}

COLUMNS = {
    "cli": 1.5,
    "report": 0.0,
    "testing": 3.0,
    "serving": 2.0,
    "deployment": 1.5,
    "experiment": 0.5,
    "data": 0.0,
    "models": 1.0,
    "simulation": 2.0,
    "algorithms": 3.0,
    "toolkit": 3.0,
    "statistics": 3.0,
    "training": 2.5,
    "core": 1.5,
}
"""Where a package stands in its layer, in the picture."""

BOX = (150, 44)
STEP = (190, 92)
MARGIN = 24


def pages() -> dict[str, str]:
    """Return the texts of the page and of its picture by their paths below docs."""
    packages = "".join(
        f"| `{package}` | {sentence(package)} | {imports(package)} |\n"
        for layer in layers()
        for package in layer
    )
    beside = "".join(f"* [`{folder}`](../{folder}): {words}\n" for folder, words in BESIDE.items())
    path = "".join(
        f"{number}. {link(target)}: {words}\n"
        for number, (target, words) in enumerate(PATH, start=1)
    )
    calls = "".join(
        f"{number}. {link(target)}: {words}\n"
        for number, (target, words) in enumerate(CALLS, start=1)
    )
    places = "".join(
        f"| {what} | {', '.join(link(target) for target in targets)} | {how} | {link(tests)} |\n"
        for what, targets, how, tests in PLACES
    )
    text = (
        f"{INTRODUCTION}{packages}\nBeside these packages:\n\n{beside}\n"
        "## How the data flow\n\nNothing flows back except a download. Every stop is a value that can be printed, "
        f"saved and compared.\n\n{path}\n"
        "## From the command to the gradient\n\nThe calls of `fedtailor run -a fedavg` with the engine `reference`. A "
        "test checks that they are at most 15. Before them, `assemble` builds method, data and model; there the engine "
        f"`auto` may time a few training steps.\n\n{calls}\n"
        f"## Where do I put ...?\n\n| to add | where | how | tests |\n|---|---|---|---|\n{places}"
    )
    return {"architecture.md": text, "architecture.svg": picture()}


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
    """Return a link to a path of the repository, or to the source of ``module:name``; both must
    exist.
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
    return f"[`{shown}`](../{path.relative_to(ROOT).as_posix()})"


@cache
def definitions(module: str) -> frozenset[str]:
    """Return the names that a module defines, and those of its classes as ``Class.name``."""
    found = set()
    for statement in ast.parse(modules()[module].read_text()).body:
        for name in _names(statement):
            found.add(name)
            if isinstance(statement, ast.ClassDef):
                found.update(
                    f"{name}.{member}" for inner in statement.body for member in _names(inner)
                )
    return frozenset(found)


def _names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    targets = (
        statement.targets
        if isinstance(statement, ast.Assign)
        else [getattr(statement, "target", None)]
    )
    return [target.id for target in targets if isinstance(target, ast.Name)]


def arrows() -> list[tuple[str, str]]:
    """Return the arrows of the picture: from a package to one that it may import, but not through a
    third.
    """
    there = [package for layer in layers() for package in layer]
    below = {
        package: {package_of(place) for place in MAY_IMPORT[package]} & set(there)
        for package in there
    }

    def reached(package: str) -> set[str]:
        return below[package].union(*(reached(other) for other in below[package]))

    return [
        (package, other)
        for package in there
        for other in sorted(below[package])
        if not any(other in reached(third) for third in below[package] - {other})
    ]


def picture() -> str:
    """Return the picture of packages and arrows as SVG."""
    rows = layers()
    place = {
        package: _center(package, row) for row, packages in enumerate(rows) for package in packages
    }
    width = 2 * MARGIN + 3 * STEP[0] + BOX[0]
    height = 2 * MARGIN + (len(rows) - 1) * STEP[1] + BOX[1]
    shapes = [_arrow(place[package], place[other], other) for package, other in arrows()]
    shapes += [_box(package, x, y) for package, (x, y) in place.items()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="16">\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#5b6b7b"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def _center(package: str, row: int) -> tuple[float, float]:
    return MARGIN + BOX[0] / 2 + COLUMNS[package] * STEP[0], MARGIN + BOX[1] / 2 + row * STEP[1]


def _box(package: str, x: float, y: float) -> str:
    width = BOX[0] + 3 * STEP[0] if package == "core" else BOX[0]  # everything stands on core
    return (
        f'<rect x="{x - width / 2:g}" y="{y - BOX[1] / 2:g}" width="{width}" height="{BOX[1]}" rx="6" fill="#eaf1f8" '
        f'stroke="#3a6ea5"/>\n<text x="{x:g}" y="{y + 5:g}" text-anchor="middle" fill="#1d2a36">'
        f"{html.escape(package)}</text>"
    )


def _arrow(start: tuple[float, float], end: tuple[float, float], target: str) -> str:
    end_x = start[0] if target == "core" else end[0]
    start_y = start[1] + BOX[1] / 2
    end_y = end[1] - BOX[1] / 2
    middle = (start_y + end_y) / 2
    path = f"M{start[0]:g},{start_y:g} C{start[0]:g},{middle:g} {end_x:g},{middle:g} {end_x:g},{end_y:g}"
    return (
        f'<path d="{path}" fill="none" stroke="#5b6b7b" stroke-width="1.5" marker-end="url(#tip)"/>'
    )
