"""Bad input: one clear sentence that names the key, the right exit code, no traceback, nothing
half-written."""

import errno
import json
import sys

import pytest

from fedtailor.cli.main import main
from fedtailor.cli.shell import run_command

USAGE = 2
CONFIG = 3
DATA = 4
FAILED = 5


def setting(*assignments):
    return ["run", *(part for text in assignments for part in ("--set", text))]


BAD = [
    # usage
    (["rum"], USAGE, "unknown command 'rum'; did you mean 'run'?"),
    (["--bogus"], USAGE, "unknown option '--bogus'"),
    (["run", "--bogus"], USAGE, "unknown option '--bogus'"),
    (["run", "--clients", "many"], CONFIG, "data.clients must be a whole number, got 'many'."),
    (["run", "--rounds", "1.5"], CONFIG, "federation.rounds must be a whole number, got 1.5."),
    (["run", "--rounds="], USAGE, "the value of --rounds is empty."),
    (["run", "--data", ""], USAGE, "the value of --data is empty."),
    (["run", "-a", " "], USAGE, "the value of --algorithm is empty."),
    (["run", ""], USAGE, "the value of CONFIG.toml is empty."),
    (["compare", "-a", "local", "-a", ""], USAGE, "the value of --algorithm is empty."),
    (["onboard", "run", "--data", "x", "--name", ""], USAGE, "the value of --name is empty."),
    (["run", "one.toml", "two.toml"], USAGE, "unexpected argument 'two.toml'."),
    (["demo", "--seed", "x"], USAGE, "--seed must be a whole number, got 'x'."),
    (
        ["list"],
        USAGE,
        "KIND is missing: one of algorithms, datasets, models, partitions, engines, metrics.",
    ),
    (["list", "algorithmz"], USAGE, "algorithms"),
    (["run", "-a", "fedavg", "-a", "local"], USAGE, "--algorithm is given 2 times; give it once."),
    (["run", "--rounds", "1", "--rounds=2"], USAGE, "--rounds is given 2 times"),
    (["data", "partition", "--seed", "1", "--seed", "1"], USAGE, "--seed is given 2 times"),
    (setting("training.lr=0.1", "training.lr=0.2"), USAGE, "--set gives 'training.lr' twice"),
    (
        ["data", "partition", *setting("data.clients=3", "data.clients=4")[1:]],
        USAGE,
        "gives 'data.clients' twice",
    ),
    (["run", "--json=3"], USAGE, "--json takes no value."),
    (["run", "--algoritm", "fedavg"], USAGE, "did you mean '--algorithm'?"),
    # names
    (["run", "-a", "pfedfdaa"], CONFIG, "did you mean 'pfedfda'?"),
    (
        ["run", "-a", "nowhere.at.all:Class"],
        CONFIG,
        "the module 'nowhere.at.all' of algorithm 'nowhere.at.all:Class' cannot be imported",
    ),
    (
        ["run", "-a", "json:JSONDecoder"],
        CONFIG,
        "algorithm 'json:JSONDecoder' is not a subclass of fedtailor.toolkit.Algorithm.",
    ),
    (["run", "-a", "json:Nothing"], CONFIG, "the module 'json' has no class 'Nothing'"),
    (["run", "-d", "digitz"], CONFIG, "digits"),
    (["run", "--model", "mpl"], CONFIG, "mlp"),
    (
        ["run", "--model", "nowhere.at.all:model"],
        CONFIG,
        "the module 'nowhere.at.all' of model 'nowhere.at.all:model' cannot be imported",
    ),
    (["run", "--engine", "wrokers"], CONFIG, "engine.name"),
    (["run", "--partition", "dirichelt(alpha=1)"], CONFIG, "dirichlet"),
    (setting("algorithm.preset=papre"), CONFIG, "paper"),
    (setting("trainig.lr=0.1"), CONFIG, "training"),
    (setting("training.learning_rate=0.1"), CONFIG, "unknown option 'learning_rate' of training"),
    (setting("algorithm.cov_rigde=1"), CONFIG, "cov_ridge"),
    (
        setting("algorithm.nme=fedavg"),
        CONFIG,
        "unknown option 'nme' of pfedfda; did you mean 'name'?",
    ),
    (setting("algorithm.prest=paper"), CONFIG, "did you mean 'preset'?"),
    (setting("model.options.hiden=5"), CONFIG, "hidden"),
    (
        setting("model.hidden=5"),
        CONFIG,
        "unknown option 'hidden' of model. Known: name, others, options.",
    ),
    (setting("rounds=3"), CONFIG, "did you mean 'federation.rounds'?"),
    (["run", "-a", "fedprox", "--set", "penalty=1"], CONFIG, "did you mean 'algorithm.penalty'?"),
    (
        ["run", "-a", "lg_fedavg", "--set", "algorithm.shared_layers=9"],
        CONFIG,
        "algorithm.shared_layers must be at most",
    ),
    # types
    (setting("training.lr=fast"), CONFIG, "training.lr must be a number, got 'fast'"),
    (setting("training.lr=true"), CONFIG, "training.lr must be a number, got True."),
    (setting("training.epochs=1.5"), CONFIG, "training.epochs must be a whole number, got 1.5."),
    (setting("training.drop_last=1"), CONFIG, "training.drop_last must be true or false, got 1."),
    (
        setting("algorithm.beta=3"),
        CONFIG,
        "algorithm.beta must be one of 'single', 'multi', 'none', got 3.",
    ),
    (setting("algorithm.name=3"), CONFIG, "algorithm.name must be text, got 3."),
    (setting("model.options=5"), CONFIG, "model.options must be a section with keys, got 5."),
    (setting("model.others=5"), CONFIG, "model.others must be a list of text values, got 5."),
    (setting("data.mean=3"), CONFIG, "data.mean must be a list of numbers, got 3."),
    (
        setting("data=digits"),
        CONFIG,
        "data must be a section with keys, such as [data], got 'digits'",
    ),
    (
        setting("data.clients=3", "data.clients.number=3"),
        CONFIG,
        "clients must be a section to set 'data.clients.number', got 3.",
    ),
    # ranges
    (["run", "--rounds", "0"], CONFIG, "federation.rounds must be >= 1, got 0."),
    (["run", "--rounds", "-3"], CONFIG, "federation.rounds must be >= 1, got -3."),
    (["run", "--clients", "-1"], CONFIG, "data.clients must be >= 0, got -1."),
    (["run", "--seed", "-1"], CONFIG, "seed must be >= 0 and <= 9007199254740992, got -1."),
    (["run", "--seed", "9007199254740993"], CONFIG, "<= 9007199254740992, got 9007199254740993."),
    (["run", "--participation", "1.5"], CONFIG, "with a probability in (0, 1], got 1.5."),
    (["run", "--participation", "0"], CONFIG, "with a probability in (0, 1], got 0."),
    (["run", "--participation", "nan"], CONFIG, "with a probability in (0, 1], got nan."),
    (["run", "--participation", "some"], CONFIG, "with a probability in (0, 1], got 'some'."),
    (["run", "--participation", "fixed(0)"], CONFIG, "federation"),
    (
        ["run", "--participation", "fixed(30)"],
        CONFIG,
        "federation.participation must be at most 20, the number of clients, got 30.",
    ),
    (["run", "--partition", "dirichlet(alpha=0)"], CONFIG, "dirichlet.alpha must be > 0, got 0.0."),
    (
        ["run", "--partition", "dirichlet(alpha=nan)"],
        CONFIG,
        "data.partition must be a name with named options",
    ),
    (["run", "--partition", "classes(k=0)"], CONFIG, "classes.k must be >= 1, got 0."),
    (setting("training.lr=nan"), CONFIG, "training.lr must be a finite number, got nan."),
    (setting("training.lr=inf"), CONFIG, "training.lr must be a finite number, got inf."),
    (setting("training.lr=-0.1"), CONFIG, "training.lr must be > 0, got -0.1."),
    (setting("training.momentum=1.0"), CONFIG, "training.momentum must be >= 0 and < 1, got 1.0."),
    (setting("algorithm.lr=0"), CONFIG, "algorithm.lr must be > 0, got 0.0."),
    (setting("algorithm.cov_ridge=-1"), CONFIG, "algorithm.cov_ridge must be >= 0, got -1.0."),
    (setting("data.fraction=0"), CONFIG, "data.fraction must be > 0 and <= 1, got 0.0."),
    (setting("data.test_share=1"), CONFIG, "data.test_share must be >= 0 and < 1, got 1.0."),
    (
        setting("data.new_clients=20"),
        CONFIG,
        "data.new_clients must be less than the number of clients (20), got 20.",
    ),
    (
        setting("federation.min_clients=21"),
        CONFIG,
        "federation.min_clients must be at most 20, the clients of a round, got 21.",
    ),
    (setting("evaluation.every=-1"), CONFIG, "evaluation.every must be >= 0, got -1."),
    (setting("engine.block=0"), CONFIG, "engine.block must be >= 1, got 0."),
    # combinations and forms
    (["run", "--seed", "1", "--set", "lr"], CONFIG, "section.key=value"),
    (["run", "--seed", "1", "--seeds", "0,1"], USAGE, "give --seed or --seeds, not both."),
    (["run", "--set", "seed=1", "--seeds", "1,2"], USAGE, "give --seed or --seeds, not both."),
    (["run", "--seed", "1", "--set", "seeds=[1, 2]"], USAGE, "give --seed or --seeds, not both."),
    (["run", "--seeds", ""], USAGE, "the value of --seeds is empty."),
    (["run", "--seeds", "1,1"], CONFIG, "seeds must be a list of different whole numbers"),
    (["run", "--seeds", "a,b"], CONFIG, "seeds must be a list of different whole numbers"),
    (["run", "--seeds", "0.5"], CONFIG, "seeds must be a whole number"),
    (["run", "--seeds", "0,-1"], CONFIG, "seeds must be >= 0"),
    (
        ["run", "--partition", "dirichlet(alhpa=1)"],
        CONFIG,
        "did you mean 'alpha'? Known: alpha",
    ),
    # files and data
    (["run", "missing.toml"], CONFIG, "cannot read 'missing.toml': No such file or directory."),
    (["run", "--data", "nowhere"], DATA, "There is no folder or file 'nowhere' in '"),
    (["run", "-d", "mnist", "--data-dir", "nowhere"], DATA, "was not found in nowhere/MNIST/raw."),
    (
        ["run", "-d", "cifar10", "--data-dir", "nowhere"],
        DATA,
        "was not found in nowhere/cifar-10-batches-py.",
    ),
    (
        ["run", "--clients", "5000"],
        DATA,
        "needs at most 1797 clients, one for each example, got 5000 clients.",
    ),
    (["run", "--clients", "1797", "--partition", "iid"], DATA, "data.clients (1797)"),
    (setting("data.test_share=0.999"), DATA, "data.test_share (0.999)"),
    (
        ["run", "--partition", "dirichlet(alpha=0.5, min_size=500)"],
        DATA,
        "needs at least 500 examples for each of 20 clients, together 10000, got 1797.",
    ),
    (["doctor", "--data-dir", "nowhere"], DATA, "the data folder 'nowhere' does not exist."),
]


WORDS_OF_LIBRARIES = (
    "Traceback",
    "Input should",
    "Invalid value",
    "integer",
    "pydantic",
    "typer",
    "dict ",
    "tuple",
)


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "named"), BAD, ids=[" ".join(case[0]) for case in BAD]
)
def test_bad_input_is_one_sentence(arguments, code, named, empty, capsys):
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        len(err.splitlines()) == 1
        and err.startswith("error: ")
        and err.rstrip().endswith((".", "--help"))
    )
    assert named in err
    assert not [word for word in WORDS_OF_LIBRARIES if word in err]
    assert not list(empty.iterdir()), "something was written"

    assert main([*arguments, "--json"]) == code
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert error["kind"] == {USAGE: "usage", CONFIG: "config", DATA: "data"}[code]
    assert named in error["message"] and err == ""


OWN = """
import dataclasses
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.core.algorithm import Algorithm
frozen = dataclasses.dataclass(frozen=True, kw_only=True)

@frozen
class Abstract(Algorithm):
    def messages(self, task): ...

class Undecorated(FedAvg):
    knob: int = 3

class OwnInit(FedAvg):
    def __init__(self, knob=3): ...

@frozen
class Named(FedAvg):
    name: str = "mine"

@frozen
class Retrained(FedAvg):
    training: int = 3
"""


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Abstract", "lacks local_update, personalize."),
        ("Undecorated", "@dataclass(frozen=True, kw_only=True)"),
        ("OwnInit", "__init__"),
        ("Named", "field 'name'"),
        ("Retrained", "field 'training'"),
    ],
)
def test_an_algorithm_that_cannot_be_run_says_what_is_missing(
    name, named, empty, capsys, monkeypatch
):
    (empty / "faulty_parts.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "faulty_parts", raising=False)
    monkeypatch.syspath_prepend(str(empty))
    assert main(["run", "-a", f"faulty_parts:{name}"]) == CONFIG
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and named in err and f"faulty_parts:{name}" in err
    assert not (empty / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--rounds"], "--rounds needs a value. See: fedtailor run --help"),
        (["run", "-a"], "-a needs a value. See: fedtailor run --help"),
        (
            ["data", "partition", "--clients"],
            "--clients needs a value. See: fedtailor data partition --help",
        ),
    ],
)
def test_an_option_without_its_value(arguments, sentence, empty, capsys):
    assert main(arguments) == USAGE
    assert capsys.readouterr().err == f"error: {sentence}\n"


def test_keys_are_machine_readable(empty, capsys):
    assert main(["run", "--json", "--set", "training.lr=-1"]) == CONFIG
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == {
        "kind": "config",
        "message": "training.lr must be > 0, got -1.0.",
        "key": "training.lr",
        "page": "reference/configuration",
        "allowed": "> 0",
        "got": "-1.0",
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[training\nlr=1", "TOML"),
        ("training = 3", "training must be a section with keys, such as [training], got 3."),
        ("[traning]\nlr = 1", "unknown section [traning]; did you mean 'training'?"),
        ("seed = 1\nseeds = [1, 2]", "give 'seed' or 'seeds', not both."),
        (
            "seeds = []",
            "seeds must be a list of different whole numbers, such as [0, 1, 2], got []",
        ),
        ("seeds = 3", "seeds must be a list of different whole numbers, such as [0, 1, 2], got 3."),
        ("[training]\nlr = nan", "training.lr must be a finite number, got nan."),
        ("[data]\nclients = 10\nclients = 11", "TOML"),
        ("\x00", "TOML"),
        ("[federation]\nparticipation = true", "with a probability in (0, 1], got True."),
    ],
)
def test_bad_files_are_one_sentence(text, named, empty, capsys):
    (empty / "bad.toml").write_text(text)
    assert main(["run", "bad.toml"]) == CONFIG
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and named in err
    assert [path.name for path in empty.iterdir()] == ["bad.toml"]


def test_a_file_that_is_no_text(empty, capsys):
    (empty / "bad.toml").write_bytes(b"\xff\xfe\x00")
    assert main(["run", "bad.toml"]) == CONFIG
    assert "bad.toml" in capsys.readouterr().err


def test_debug_shows_the_traceback(empty, capsys):
    assert main(["run", "--debug", "--set", "training.lr=-1"]) == CONFIG
    assert "Traceback" in capsys.readouterr().err


def test_an_existing_run_is_never_overwritten(empty, capsys):
    (empty / "run").mkdir()
    (empty / "run" / "kept.txt").write_text("mine")
    for command in (["run", "--rounds", "1"], ["demo"]):
        assert main([*command, "--out", "run"]) == CONFIG
        assert "never overwritten" in capsys.readouterr().err
    assert [path.name for path in (empty / "run").iterdir()] == ["kept.txt"]


def test_a_folder_that_cannot_be_made(empty, capsys):
    (empty / "file").write_text("")
    assert main(["run", "--rounds", "1", "--clients", "2", "--out", "file/run"]) == FAILED
    err = capsys.readouterr().err
    assert "file/run" in err and "Traceback" not in err


def test_control_characters_do_not_reach_the_terminal(empty, capsys):
    assert main(["run", "-a", "\x1b]0;owned\x07"]) == CONFIG
    err = capsys.readouterr().err
    assert "\x1b" not in err and "\x07" not in err


def test_an_error_of_the_system_without_a_file_is_a_sentence(capsys):
    def fail():
        raise OSError(errno.ENOSPC, "No space left on device")

    assert run_command(fail, []) == FAILED
    assert capsys.readouterr().err == "error: No space left on device.\n"
