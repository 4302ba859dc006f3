"""The commands of ``fedtailor data``, in process."""

import hashlib
import json
import shlex

import numpy as np
import pytest

from fedtailor.cli.main import main
from fedtailor.data import fetch as fetching
from fedtailor.data.datasets import DATASETS, PublishedFile
from fedtailor.data.split import read_split

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def data(capsys):
    """Return a function that runs a command; it returns exit code, stdout and stderr."""

    def call(*arguments):
        code = main(["data", *arguments])
        return code, *capsys.readouterr()

    return call


def as_json(result, code=0):
    assert result[0] == code, result
    assert result[2] == "" or not result[2].startswith("error"), result
    return json.loads(result[1])


def test_list(data, folder):
    (folder / "MNIST/raw").mkdir(parents=True)
    (folder / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(bytes(1500))
    record = as_json(data("list", "--data-dir", ".", "--json"))
    by_name = {entry["name"]: entry for entry in record["datasets"]}
    assert record["data_folder"] == "." and by_name["mnist"]["state"] == "partial"
    code, out, err = data("list", "--data-dir", ".")
    assert code == 0 and err == "" and all(f" {name} " in out for name in by_name)
    row = next(line for line in out.splitlines() if line.startswith(" mnist "))
    assert "partial" in row and "1.5 kB" in row and "fetch" in row


def test_a_data_folder_that_is_a_file_is_an_error(data, folder):
    (folder / "file").write_text("")
    code, out, err = data("list", "--data-dir", "file")
    assert (code, out) == (4, "") and "'file' is a file" in err


def test_fetch(data, folder, monkeypatch):
    content = b"content"
    checksum = "sha256:" + hashlib.sha256(content).hexdigest()
    download = PublishedFile("http://nowhere/file", "MNIST/raw/file", checksum)
    table = {**DATASETS, "mnist": DATASETS["mnist"]._replace(downloads=(download,))}

    def arrive(url, part, report):
        report(0, 7)
        part.write_bytes(content)
        report(7, 7)

    monkeypatch.setattr(fetching, "transfer", arrive)
    monkeypatch.setattr(fetching, "DATASETS", table)
    code, out, err = data("fetch", "mnist", "--data-dir", "there")
    assert code == 0 and "MNIST/raw/file" in out and "7 bytes" in out
    assert err.splitlines()[0] == "file: 0 bytes of 7 bytes, 0 %"
    record = as_json(data("fetch", "mnist", "--data-dir", "there", "--json"))
    assert (
        record["files"] == [{"path": "MNIST/raw/file", "bytes": 7}] and record["elsewhere"] is None
    )
    assert as_json(data("fetch", "digits", "--json"))["files"] == []
    assert "needs no files" in data("fetch", "digits")[2]


def test_an_interrupted_fetch_says_how_to_go_on(data, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetching, "transfer", interrupted)
    code, out, err = data("fetch", "mnist", "--data-dir", "there")
    assert (code, out) == (
        6,
        "",
    ) and err == "interrupted; run the same command again to resume the download.\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_cannot_be_used_to_write_to_the_terminal(terminal, monkeypatch, capsys):
    from fedtailor.cli.show.data import FetchLine

    monkeypatch.setenv("TTY_COMPATIBLE", str(int(terminal)))
    with FetchLine() as line:
        line("\x1b]0;owned\x07", 5_000_000, 10_000_000)
        line("unpacking it", 1234, 0)
    err = capsys.readouterr().err
    assert "\x1b]0" not in err and "\x07" not in err and "unpacking it" in err
    assert ("5.0 MB of 10.0 MB, 50 %" in err) or terminal, (
        "a line that changes may have shown the last state only"
    )


@pytest.mark.parametrize(
    ("name", "code", "named"), [("mnits", 3, "did you mean 'mnist'"), ("femnist", 4, "LEAF")]
)
def test_fetch_refuses_in_one_sentence(data, name, code, named):
    found, out, err = data("fetch", name)
    assert found == code and out == "" and len(err.splitlines()) == 1 and named in err
    assert named in as_json(data("fetch", name, "--json"), code)["error"]["message"]


def test_partition_writes_a_split_that_can_be_read(data, folder):
    record = as_json(
        data("partition", "--clients", "4", "--partition", "iid", "--out", "split.json", "--json")
    )
    split = read_split(folder / "split.json")
    assert (record["data_sha256"], record["split_sha256"]) == (
        split["data_sha256"],
        split["split_sha256"],
    )
    assert record["dataset"] == "digits" and record["seed"] == 42 and record["out"] == "split.json"
    assert record["use"] == "fedtailor run --split split.json"
    options = ["-d", "digits", "--partition", "iid", "--clients", "4", "--seed", "7"]
    options += ["--set", "data.fraction=0.5", "--set", "data.normalize=training"]
    used = as_json(data("partition", *options, "--out", "half.json", "--json"))["use"]
    assert used == (
        "fedtailor run --dataset digits --set data.seed=7 --set data.normalize=training "
        "--split half.json"
    ), "what divides is in the file; a run without the rest would have other data"

    # Of new clients by name, the file has the order.
    options = ["-d", "synthetic", "--set", 'data.new_clients=["domain 1"]', "--out", "new.json"]
    of_new = as_json(data("partition", *options, "--json"))["use"]
    assert of_new.endswith("--set data.new_clients=1 --split new.json")
    for command in (used, of_new):
        assert main([*shlex.split(command)[1:], "--dry-run"]) == 0
    assert [client["train"] for client in record["clients"]] == [
        len(client["train"]) for client in split["clients"]
    ]
    assert all(
        sum(client["class_counts"].values()) == client["train"] for client in record["clients"]
    )
    before = (folder / "split.json").read_bytes()
    code, _, err = data("partition", "--partition", "iid", "--out", "split.json")
    assert code == 3 and "does not exist" in err and (folder / "split.json").read_bytes() == before


def write_pictures(folder, rows=40):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    np.savez(
        folder / "train.npz",
        x=rng.integers(0, 256, (rows, 32, 32, 3), np.uint8),
        y=np.arange(rows) % 2,
    )


def test_partition_says_the_conditions_of_a_run_without_making_images(data, folder, monkeypatch):
    from fedtailor.data.build import build, split_record
    from fedtailor.data.corruptions import shift
    from fedtailor.experiment.config import make_config

    write_pictures(folder / "own/north")
    given = {"data.path": "own", "data.partition": "iid", "data.clients": 4, "data.new_clients": 1}
    given["data.shift"] = "cifar_s(clients=1, new='all')"
    built = build(make_config({}, list(given.items())).data, run_seed=0)
    expected = split_record(built.division, built.conditions)
    monkeypatch.setattr(shift, "corrupt", lambda *_, **__: pytest.fail("images were made"))
    words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    assert data("partition", *words, "--out", "split.json")[0] == 0
    assert read_split(folder / "split.json") == expected and len(expected["conditions"]) == 3 + 11


@pytest.mark.slow
def test_partition_is_that_of_a_run(data, folder):
    options = ["--clients", "3", "--partition", "dirichlet(alpha=1.0)"]
    as_json(data("partition", *options, "--out", "split.json", "--json"))
    assert main(["run", *options, "--rounds", "1", "-a", "fedavg", "--out", "run"]) == 0
    split = read_split(folder / "run/split.json")
    assert split == read_split(folder / "split.json")


BAD = [
    (["partition", "--set", "training.lr=1"], 3, "data.fraction"),
    (["partition", "--partition", "iidd"], 3, "iid"),
    (["partition", "-d", "mnist", "--data-dir", "nowhere"], 4, "nowhere"),
    (["plot", "--out", "a.jpg"], 3, ".svg"),
    (["partition", "-d", "digits", "--data", "own"], 2, "not both"),
    (["fetch"], 2, "name"),
    (["partition", "--out", "no/split.json", "--partition", "iid"], 5, "no/split.json"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "named"), BAD, ids=[" ".join(case[0]) for case in BAD]
)
def test_bad_input_is_one_sentence(data, folder, arguments, code, named):
    found, out, err = data(*arguments)
    assert (found, out) == (code, "") and len(err.splitlines()) == 1 and err.startswith("error: ")
    assert named in err.lower() and not list(folder.iterdir())


def write_site(folder, name="north", rows=12):
    (folder / name).mkdir(parents=True)
    labels = np.arange(rows) % 2
    np.savez(
        folder / name / "train.npz",
        x=np.zeros((rows, 4, 4), np.uint8) + labels[:, None, None].astype(np.uint8),
        y=labels,
    )


def test_check_of_usable_data(data, folder):
    for name in ("north", "south"):
        write_site(folder / "own", name)
    record = as_json(data("check", "own", "--json"))
    assert record["usable"] and [site["name"] for site in record["sites"]] == ["north", "south"]
    assert sum(record["sites"][0]["train"].values()) == 12
    code, out, err = data("check", "own")
    assert code == 0 and "north" in out and err.splitlines()[-1] == "The data can be used."


def test_check_of_unusable_data_is_exit_4(data, folder):
    write_site(folder / "own")
    (folder / "own/\x1b[31mbad").mkdir()
    (folder / "own/\x1b[31mbad/train.npz").write_bytes(b"no archive")
    record = as_json(data("check", "own", "--json"), code=4)
    assert not record["usable"] and record["problems"][0]["severity"] == "error"
    code, out, err = data("check", "own")
    assert code == 4 and "error: " in err and "cannot be used" in err.splitlines()[-1]
    assert "\x1b" not in out + err


def test_check_of_nothing_is_one_error_and_no_table(data):
    code, out, err = data("check", "missing")
    lines = err.splitlines()
    assert (
        (code, out) == (4, "")
        and lines[1] == "error: missing paths (1)"
        and lines[-1].endswith("as it is.")
    )
    assert len(lines) == 4 and "missing" in lines[2]


def test_problems_are_grouped_errors_first():
    from fedtailor.data.describe import describe_findings
    from fedtailor.data.own.findings import Findings, OwnData, Site

    findings = Findings(sites=[Site("a")])
    for number in range(5):
        findings.add("not_an_image", "Odd.", site="a", path=f"file{number}")
    findings.add("no_features", "Broken.", path="file")
    record = describe_findings("path", OwnData(None, findings))
    assert [
        (group["kind"], group["count"], len(group["problems"])) for group in record["problems"]
    ] == [
        ("no_features", 1, 1),
        ("not_an_image", 5, 5),
    ]
    assert not record["usable"] and record["sites"][0]["problems"] == 5


def test_a_picture_is_never_written_over_another_file(data, folder, monkeypatch):
    (folder / "data.html").write_text("mine")
    (folder / "link.svg").symlink_to("nowhere")
    for name in ("data.html", "link.svg"):
        code, out, err = data("plot", "--out", name)
        assert (code, out) == (3, "") and "does not exist" in err and "--out" in err
    assert (folder / "data.html").read_text() == "mine" and (folder / "link.svg").is_symlink()
    monkeypatch.setattr(
        "fedtailor.report.page.files.write_figure", lambda figure, path: path.write_text("picture")
    )
    assert as_json(data("plot", "--partition", "iid", "--json"))["out"] == "partition.html"
    assert (folder / "partition.html").read_text() == "picture"
    assert data("plot", "--partition", "iid")[0] == 3


def test_list_of_one_says_all_of_it(data, folder):
    for name in ("cifar10", "femnist", "digits"):
        code, out, err = data("list", name)
        known = DATASETS[name]
        assert code == 0 and err == ""
        assert " ".join(known.citation.split()) in " ".join(out.split())
        assert known.description.split()[0] in out and known.license.split()[0] in out
        assert known.tested_on in out

    assert [each["name"] for each in as_json(data("list", "mnist", "--json"))["datasets"]] == [
        "mnist"
    ]
    code, out, err = data("list", "mnits")
    assert (code, out) == (3, "") and "did you mean 'mnist'" in err


@pytest.mark.parametrize("name", ["foo.txt", "split", "split.json.gz"])
def test_another_ending_of_out_is_refused(data, folder, name):
    code, out, err = data("partition", "--partition", "iid", "--out", name)
    assert (code, out) == (3, "") and name in err and not list(folder.iterdir())


def test_plot(data, folder):
    options = ["--clients", "3", "--partition", "iid", "--out", "a.svg"]
    assert as_json(data("plot", *options, "--json")) == {"out": "a.svg"}
    assert (folder / "a.svg").read_text().startswith("<svg")


def test_embedded_features_are_trained_on_without_the_encoder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))
    out = str(tmp_path / "features")
    arguments = ["data", "embed", "digits", "--encoder", "tiny_encoders:tiny", "--out", out]
    assert main([*arguments, "--set", "data.subset=100"]) == 3
    assert "data.subset must be left out" in capsys.readouterr().err
    assert main([*arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["dimension"], record["sites"]) == (6, {"": 1797})

    assert main(arguments) == 3
    assert "a name that does not exist" in capsys.readouterr().err
    assert main(["data", "check", out]) == 0
