"""What README and docs tell a reader to type works as written."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.cells import read_plan
from fedtailor.algorithms import ALGORITHMS
from fedtailor.cli.main import main
from fedtailor.cli.show.demo import NEXT_STEPS
from fedtailor.core.help_pages import PAGES as HELP_PAGES
from fedtailor.core.metrics import METRICS
from fedtailor.data.datasets import DATASETS
from fedtailor.data.partitions import PARTITIONS
from fedtailor.deployment.options import (
    FEDERATION_FILE,
    SITE_FILE,
    load_federation,
    load_site,
)
from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.config import make_config
from fedtailor.experiment.sweep import make_searches
from fedtailor.experiment.sweep_options import load_sweep
from fedtailor.experiment.tracking import TRACKERS
from marks import slow
from tutorial import BLOCK

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
WRITTEN = [
    line.rstrip("/") for line in (DOCS / ".gitignore").read_text().splitlines() if line[0] != "#"
]
"""Pages and folders that `make docs` writes."""


def is_written(path):
    """Return whether git does not keep a page, or its folder."""
    return any(path.resolve().is_relative_to(DOCS / name) for name in WRITTEN)


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *(path for path in sorted(DOCS.rglob("*.md")) if not is_written(path)),
]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


def commands():
    """Return every command line of fedtailor in the pages, and those that the demo suggests."""
    lines = [
        line for page in PAGES for block in blocks(page, "console") for line in block.splitlines()
    ]
    inline = [
        text for page in PAGES for text in re.findall(r"`(fedtailor [^`]*)`", page.read_text())
    ]
    return [
        line.strip()
        for line in [*lines, *inline, *NEXT_STEPS]
        if re.match(r"\s*(\.venv/bin/)?fedtailor ", line)
    ]


README = (ROOT / "README.md").read_text()
ELSEWHERE = (
    "demo",
    "predict",
    "evaluate",
    "watch",
    "adapt",
    "onboard",
    "hand-over",
    "export",
    "deploy",
    "site",
    "serve",
)
"""Commands that have a test of their own."""


def is_runnable(line):
    """Return whether a command has no placeholder, and needs no data beside those of a clone."""
    has_placeholder = "[" in line or "package.module" in line
    has_placeholder |= "server/" in line
    has_placeholder |= bool(re.search(r"\b(RUN|[A-Z]{4,})\b", line))
    has_placeholder |= "features" in line  # the walk of docs/howto/encoders.md
    return not has_placeholder and "cifar10" not in line and line.split()[1] not in ELSEWHERE


def runnable_lines():
    """Return the commands as parameters; of those with the same options, all but one are slow,
    and so are simulations of noise."""
    lines = {line.partition("  (")[0].partition("#")[0].strip() for line in commands()}
    shapes = set()
    cases = []
    for line in sorted(filter(is_runnable, lines), key=lambda line: (line not in README, line)):
        words = shlex.split(line)[1:]
        options = {word for word in words if word.startswith("-")} - {"--out"}
        shape = (words[0], *[word for word in words[1:2] if word[0] != "-"], *sorted(options))
        is_repeated = shape in shapes or (words[0] == "sweep" and ("sweep",) in shapes)
        is_slow = is_repeated or "--simulate" in words
        cases.append(slow(line) if is_slow else line)
        shapes |= {shape, (words[0],)}

    return cases


def write_hospitals(folder):
    """Write images of two classes at three sites."""
    generator = np.random.default_rng(0)
    for site in "ABC":
        for label in range(2):
            place = folder / f"site {site}" / f"class {label}"
            place.mkdir(parents=True)
            for number in range(12):
                pixels = generator.integers(0, 128, (12, 12), dtype=np.uint8) + np.uint8(
                    100 * label
                )
                Image.fromarray(pixels).save(place / f"patient{number}.png")


def write_tables(folder):
    """Write a table of twelve patients at two sites, with an empty cell and text."""
    folder.mkdir()
    for site in "AB":
        rows = [
            f"{site}{number // 2},{number or ''},{'fm'[number % 2]},{number % 3 == 0}"
            for number in range(24)
        ]
        (folder / f"site {site}.csv").write_text("\n".join(["patient_id,age,sex,diagnosis", *rows]))


def own_algorithm(folder, monkeypatch):
    """Write the algorithm of docs/tutorials/write-a-method.md to a folder that modules come from;
    return its test."""
    text = (DOCS / "tutorials" / "write-a-method.md").read_text()
    files = {match["file"]: match["text"] for match in BLOCK.finditer(text) if match["file"]}
    (folder / "my_method.py").write_text(files["my_method.py"])
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "my_method", raising=False)
    return files["test_my_method.py"]


def write_encoder(folder, monkeypatch):
    """Write the encoder of docs/howto/encoders.md, with a mean over parts of a picture as its network."""
    (code, *_) = blocks(ROOT / "docs" / "howto" / "encoders.md", "python")
    network = "nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())"
    function = f"\ndef efficientnet():\n    return Resized({network}, 16, [0.5], [0.5])\n"
    (folder / "my_encoders.py").write_text(code + function)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "my_encoders", raising=False)


def shortened(arguments, *, is_in_readme):
    """Return a command that trains as written, but for its length; those of other pages only check
    the configuration."""
    if arguments[0] == "sweep":
        arguments = [word for word in arguments if word != "sweep.toml"]
        short = ["--rounds", "1", "--trials", "1", "--clients", "3", "--seeds", "0"]
        return ["sweep", "sweep.toml", *arguments[1:], *short]

    if "--simulate" in arguments:
        short = ["data.clients=5", "evaluation.baselines='none'", "privacy.epsilon=8"]
        options = [word for one in short for word in ("--set", one)]
        return [*arguments, "--rounds", "1", *options]

    if arguments[0] not in ("run", "compare") or "--help" in arguments:
        return arguments
    if arguments[0] == "run" and not is_in_readme:
        return [*arguments, *(["--dry-run"] if "--dry-run" not in arguments else [])]

    is_divided = {"--data", "--split"} & set(arguments)  # the clients are given
    arguments = [*arguments, "--set", "evaluation.baselines='majority'"]
    shorter = (("--rounds", "1"), ("--seeds", "0"), ("--clients", "5"), ("--folds", "2"))
    for option, value in shorter:
        if option in arguments:
            arguments[arguments.index(option) + 1] = value
        elif option == "--rounds" or (option == "--clients" and not is_divided):
            arguments = [*arguments, option, value]

    return arguments


@pytest.mark.parametrize("line", runnable_lines())
def test_commands_work_as_written(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_hospitals(tmp_path / "my_hospitals")
    write_tables(tmp_path / "my_tables")
    own_algorithm(tmp_path, monkeypatch)
    if "--split" in line:
        command = "data partition -d digits --partition iid --out split.json"
        assert main(command.split()) == 0
    if "sweep" in line:
        (tmp_path / "sweep.toml").write_text(
            blocks(ROOT / "docs" / "howto" / "sweeping.md", "toml")[0]
        )
    if "experiment.toml" in line:  # it makes the folder look like that of a run
        (tmp_path / "experiment.toml").write_text(
            blocks(ROOT / "docs" / "howto" / "running.md", "toml")[0]
        )

    arguments = shortened(shlex.split(line)[1:], is_in_readme=line in README)
    assert main(arguments) == 0, capsys.readouterr().err


def run_example(folder):
    """Write the sample of README, whose pictures are embedded in scikit-learn."""
    subprocess.run(
        [sys.executable, ROOT / "examples" / "hospitals.py", "my_hospitals", "fifth_hospital"],
        cwd=folder,
        check=True,
    )


def test_the_commands_on_a_run_are_understood(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    texts = [block for page in PAGES for block in blocks(page, "console")]
    lines = [line.removeprefix(".venv/bin/") for text in texts for line in text.splitlines()]
    on_a_run = re.compile(
        r"fedtailor (predict|evaluate|watch|adapt|onboard|hand-over|export) (?!.*(\[|RUN))"
    )
    lines = [line for line in lines if on_a_run.match(line)]
    assert len(lines) > 6
    for line in lines:
        # There is no such run here; another mistake would be one of usage.
        assert main(shlex.split(line, comments=True)[1:]) == 4, (line, capsys.readouterr().err)


@pytest.mark.slow
def test_the_walk_from_own_folders_to_files_works_as_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_example(tmp_path)
    for hospital in ("Mayo", "Oslo"):  # two of four hospitals take half of the time
        shutil.rmtree(tmp_path / "my_hospitals" / hospital)

    page = (DOCS / "tutorials" / "first-model.md").read_text()
    lines = re.findall(r"^\$ (fedtailor .*)$", page, flags=re.MULTILINE)
    for page in (
        "predict",
        "evaluate",
        "watch",
        "adapt",
        "onboard",
        "export",
        "encoders",
        "features",
        "features-in-use",
    ):
        for block in blocks(DOCS / "howto" / f"{page}.md", "console"):
            lines += [line for line in block.splitlines() if "cifar10" not in line]

    write_encoder(tmp_path, monkeypatch)
    # Pages repeat commands.
    commands_once = {}
    for line in lines:
        arguments = shlex.split(line.removeprefix(".venv/bin/"), comments=True)[1:]
        commands_once.setdefault(tuple(arguments), arguments)

    for arguments in commands_once.values():
        if "--rounds" in arguments:
            arguments[arguments.index("--rounds") + 1] = "1"  # as written but for its length

        # New inputs need not support an adaptation.
        allowed = {0, 4} if arguments[0] == "adapt" else {0}
        assert main(arguments) in allowed, capsys.readouterr().err
    assert (
        len(list(Path("exported").glob("*.onnx"))) == 2
        and len(list(Path("exported").glob("*.pt2"))) == 1
    )


@pytest.mark.slow
def test_the_page_of_models_and_the_notebook_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_example(tmp_path)
    (example,) = blocks(ROOT / "docs" / "howto" / "models.md", "python")
    (there,) = re.findall(r"digit 3/\d+\.png", example)[:1]
    present = sorted(Path("my_hospitals/Charité/digit 3").glob("*.png"))[0].name
    exec(
        compile(
            example.replace("rounds=20", "rounds=1").replace(there, f"digit 3/{present}"),
            "models.md",
            "exec",
        ),
        {},
    )
    assert "Charité" in capsys.readouterr().out
    shutil.rmtree("runs")
    monkeypatch.syspath_prepend(ROOT / "examples")
    names = {}
    for cell in json.loads((ROOT / "examples" / "hospitals.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace("rounds=20", "rounds=1")
            exec(compile(source, "hospitals.ipynb", "exec"), names)
    assert names["porto"].clients.names == ["Porto"] and Path("exported").is_dir()


def test_the_commands_of_several_machines_are_understood(capsys):
    lines = [line for line in commands() if line.split()[1] in ("deploy", "site", "serve")]
    assert {" ".join(line.split()[1:3]) for line in lines} >= {
        "deploy init",
        "deploy add",
        "site init",
        "site start",
    }
    for line in lines:
        assert main([*shlex.split(line.partition("  (")[0], comments=True)[1:], "--help"]) == 0, (
            line
        )
        assert "Usage" in capsys.readouterr().out, line


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = [
        line.split()[1]
        for page in PAGES
        for block in blocks(page, "console")
        for line in block.splitlines()
        if line.startswith("make ")
    ]
    assert {"demo", "test", "test-all", "docs", "docs-serve"} <= set(targets)
    assert all(f"\n{target}:" in makefile for target in targets)


def test_the_citation_names_the_last_release():
    released = re.search(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {released[1]}" in lines and "license: Apache-2.0" in lines


def test_readme_counts_what_is_there():
    counts = f"{len(ALGORITHMS)} methods, {len(DATASETS)} data sets and {len(PARTITIONS)} ways"
    assert counts in README


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(ROOT / "README.md", "python")
    exec(compile(example, "README.md", "exec"), {})
    accuracy, rest = capsys.readouterr().out.split("\n", 1)
    assert 0 < float(accuracy) <= 1 and "personalized" in rest


def test_the_algorithm_of_your_own_is_checked_as_written(tmp_path, monkeypatch):
    names = {}
    exec(compile(own_algorithm(tmp_path, monkeypatch), "write-a-method.md", "exec"), names)
    names["test_it_keeps_the_contract"]()


def test_the_examples_of_a_configuration_and_of_a_plan_are_valid(tmp_path):
    for page in PAGES:
        for block in blocks(page, "toml"):
            if "[[runs]]" in block:
                (tmp_path / "plan.toml").write_text(block)
                assert read_plan(tmp_path / "plan.toml")
            elif "[deploy]" in block:
                (tmp_path / FEDERATION_FILE).write_text(block)
                assert load_federation(tmp_path / FEDERATION_FILE)
            elif "share = " in block:
                (tmp_path / SITE_FILE).write_text(block)
                assert load_site(tmp_path)
            elif "[sweep" in block:
                (tmp_path / "sweep.toml").write_text(block)
                assert make_searches(*load_sweep(tmp_path / "sweep.toml"))
            else:
                config = make_config(tomllib.loads(block))
                if config.data.dataset == "digits":  # which needs no download
                    assemble(config, 0)


def test_the_page_on_evaluation_has_every_metric():
    page = (DOCS / "reference" / "evaluation.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (higher|lower) \|$", page, re.MULTILINE)
    better = {True: "higher", False: "lower"}
    assert [(name, text.replace(" (`ECE` in tables)", ""), way) for name, text, way in rows] == [
        (name, metric.description, better[metric.higher_is_better])
        for name, metric in METRICS.items()
    ]


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" in target:
                continue

            path = (page.parent / target).resolve()
            is_later = page.is_relative_to(DOCS) and is_written(path)  # in the site
            assert path.exists() or is_later, f"{page.name}: {target}"


def test_pages_that_errors_and_texts_of_the_program_name_are_there():
    named = set(HELP_PAGES.values())
    for path in (ROOT / "src").rglob("*.py"):
        named |= set(re.findall(r"help: ((?:howto|reference|results)/[\w-]+)", path.read_text()))

    for name in named:
        page = DOCS / f"{name}.md"
        assert page.exists() or is_written(page), name


def test_every_page_is_in_the_list_of_pages():
    for index in DOCS.glob("*/index.md"):
        (tree,) = blocks(index, "{toctree}")
        listed = set(tree.replace(":hidden:", "").split())
        linked = set(re.findall(r"\]\(([^)]+)\.md\)", index.read_text()))
        there = {path.stem for path in PAGES if path.parent == index.parent} - {"index"}
        written = {
            name.removeprefix(f"{index.parent.name}/").removesuffix(".md")
            for name in WRITTEN
            if name.startswith(f"{index.parent.name}/")
        }
        written = {name.replace("algorithms", "algorithms/index") for name in written}
        assert listed == linked == there | written


def test_paths_in_the_text_exist():
    for name in ("CONTRIBUTING.md",):
        for path in re.findall(
            r"`((?:src|tests|tools|docs|benchmarks|experiments)/[\w/.]+)`",
            (ROOT / name).read_text(),
        ):
            assert (ROOT / path).exists() or "NAME" in path, f"{name}: {path}"


def test_every_extra_is_in_the_table_of_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    rows = re.findall(
        r"^\| `(\w+)` \|", (ROOT / "docs" / "howto" / "install.md").read_text(), flags=re.M
    )
    assert set(rows) == set(extras)


def test_the_locks_agree_with_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(lines):
        return {
            re.split(r"[<>=!\[ ]", line)[0].lower().replace("_", "-")
            for line in lines
            if line[:1].isalpha()
        }

    kinds = ("", "-test", "-ray", "-docs")
    files = [f"requirements{kind}.lock" for kind in kinds]
    run, test, ray, docs = ((ROOT / name).read_text().splitlines() for name in files)
    extras = project["optional-dependencies"]
    apart = {*TRACKERS, "ray", "flower", "docs"}  # tests have stand-ins of the trackers
    needed = {name for extra in set(extras) - apart for name in names(extras[extra])}
    assert names(project["dependencies"]) <= names(run)
    assert needed <= names(test) and not needed & names(run)
    flower = (ROOT / "requirements-flower.lock").read_text().splitlines()
    assert names(project["dependencies"]) | names(extras["flower"]) <= names(flower)
    assert names(extras["data"]) <= names(extras["test"]), "tests cover every extra"
    assert names(extras["ray"]) <= names(ray) and not names(ray) & (names(run) | names(test))
    assert names(extras["docs"]) <= names(docs) and not names(docs) & names(run)
    for line in (*run, *test, *ray, *docs):
        assert not line[:1].isalpha() or re.fullmatch(r"[\w.-]+==[\w.]+", line), (
            f"not an exact version: {line}"
        )
