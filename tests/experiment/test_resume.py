"""Resumed runs: the same bits as uninterrupted ones, the choices of the first start, and what is
refused."""

import hashlib
import json
import sys
from pathlib import Path

import pytest

import finished_runs
from fedtailor.core.atomic import to_json, write_whole
from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.experiment.config import load_config, make_config
from fedtailor.experiment.folder import exclusive
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.resume import refuse_other_configuration, with_first_choices
from fedtailor.experiment.run import run
from fedtailor.experiment.runner import make_jobs
from fedtailor.experiment.tracking import RunProgress
from fedtailor.simulation.engines.reference import Reference

SMALL = {
    "data": {"dataset": "digits", "clients": 4, "fraction": 0.1},
    "model": {"name": "mlp", "options": {"hidden": 5}},
    "algorithm": {"name": "scaffold"},
    "training": {"epochs": 1},
    "federation": {"rounds": 3, "participation": "fixed(2)"},
    "engine": {"name": "reference"},
}


def config(**overrides):
    return make_config(SMALL, [(key.replace("__", "."), value) for key, value in overrides.items()])


class Stop(RunProgress):
    """Interrupts a run after a round of a seed."""

    def __init__(self, round, seed=0):
        self.round_to_stop = round
        self.seed = seed
        self.title = ""
        self.rounds = []
        self.notes = []

    def begin(self, title, num_rounds, done):
        self.title = title

    def round(self, record):
        self.rounds.append(record["round"])
        if record["round"] == self.round_to_stop and self.title.endswith(f"seed {self.seed}"):
            raise KeyboardInterrupt

    def note(self, text):
        self.notes.append(text)


def interrupted(settings, out, *, after, seed=0):
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=out, progress=Stop(after, seed))


def resumed(settings, out):
    """Resume a run; return what its progress was told."""
    progress = Stop(0)
    run(settings, out=out, progress=progress)
    return progress


def same(one, other):
    """Check that two runs of one seed are equal but for times."""
    for part, expected in finished_runs.content(Path(other)).items():
        assert finished_runs.content(Path(one))[part] == expected, part


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_interrupted_run_goes_on_with_its_last_checkpoint(folder):
    run(config(), out="whole")
    interrupted(config(), "one", after=2)
    assert read_run("one").status == {"state": "interrupted", "rounds_done": 2}
    assert not list(Path("one").rglob("*.tmp"))
    progress = resumed(config(), "one")
    assert progress.rounds == [2, 3], "the checkpoint of round 2 was not written yet"
    assert progress.notes[0] == "resumed after round 1 of 3."
    same("one", "whole")
    assert sorted(path.name for path in Path("one/checkpoints").glob("0*")) == [
        "000003.json",
        "000003.safetensors",
    ]
    assert not Path("one/state").exists()
    assert {"kind": "note", "round": 1, "text": progress.notes[0]} in read_run("one").events


def test_an_interruption_while_a_checkpoint_is_written_leaves_nothing_unfinished(
    folder, monkeypatch
):
    from fedtailor.simulation import checkpoint

    run(config(), out="whole")

    def interrupt(path, *_):
        if path.name == "000002.json":
            raise KeyboardInterrupt
        write_whole(path, *_)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_whole", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(config(), out="one")
    manifest = json.loads(Path("one/checkpoints/000001.json").read_text())
    states = [f"states-{int(number):06d}.trees" for number in manifest["stores"]["states"]]
    expected = ["000001.json", "000001.safetensors", *states]
    assert sorted(path.name for path in Path("one/checkpoints").iterdir()) == expected
    assert resumed(config(), "one").rounds == [2, 3]
    same("one", "whole")


def test_the_moments_of_a_server_optimizer_go_on(folder):
    adam = config(algorithm__name="fedavg", federation__server_optimizer="adam")
    run(adam, out="whole")
    interrupted(adam, "one", after=2)
    resumed(adam, "one")
    same("one", "whole")


@pytest.mark.parametrize("after", [1, 3])
def test_before_the_first_checkpoint_and_after_the_last_round(folder, after):
    run(config(), out="whole")
    interrupted(config(), "one", after=after)
    assert resumed(config(), "one").rounds == ([1, 2, 3] if after == 1 else [3])
    same("one", "whole")


def test_a_run_that_was_stopped_before_its_result_was_written_trains_nothing(folder, monkeypatch):
    run(config(), out="whole")

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedtailor.experiment.folder.RunFolder.finish", interrupt)
        interrupted(config(), "one", after=0)
    assert read_run("one").result is None
    assert resumed(config(), "one").rounds == []
    assert not list(Path("one").glob(".*"))
    same("one", "whole")


def test_several_interruptions(folder):
    run(config(algorithm__name="fedpac"), out="whole")
    for after in (1, 2, 2, 3):
        interrupted(config(algorithm__name="fedpac"), "one", after=after)
    resumed(config(algorithm__name="fedpac"), "one")
    same("one", "whole")


def test_fewer_checkpoints(folder):
    run(config(), out="whole")
    interrupted(config(checkpoint__every=2), "two", after=2)
    assert resumed(config(checkpoint__every=2), "two").rounds == [1, 2, 3]
    interrupted(config(checkpoint__every=2), "three", after=3)
    assert resumed(config(), "three").rounds == [3], "how often they are written may change"
    same("two", "whole")
    same("three", "whole")


def test_without_checkpoints_a_run_begins_again(folder):
    interrupted(config(checkpoint__every=0), "one", after=3)
    assert not Path("one/checkpoints").exists()
    progress = resumed(config(checkpoint__every=0), "one")
    assert progress.rounds == [1, 2, 3]
    assert (
        progress.notes[0] == "no checkpoint can be used: the run begins again with its first round."
    )
    assert len(read_run("one").rounds) == 3 and not Path("one/checkpoints").exists()


def test_a_finished_run_is_not_run_again(folder):
    result = run(config(), out="one")
    before = {
        path: path.stat().st_mtime_ns
        for path in Path("one").rglob("*")
        if path.name != "status.json"
    }
    progress = Stop(0)
    again = run(config(), out=folder / "one", progress=progress)
    assert json.loads(json.dumps({**result, "run": ""})) == {**again, "run": ""}
    assert progress.rounds == [] and progress.notes == [
        f"'{folder / 'one'}' holds this run, and it has finished."
    ]
    after = {
        path: path.stat().st_mtime_ns
        for path in Path("one").rglob("*")
        if path.name != "status.json"
    }
    assert before == after


def test_several_seeds_go_on_within_the_seed_and_more_can_join(folder):
    three = config(seeds=[0, 1, 2])
    expected = run(three, out="whole")
    interrupted(config(seeds=[0, 1]), "one", after=2, seed=1)
    assert read_run("one").status == {"state": "interrupted"}
    progress = resumed(config(seeds=[1, 0]), "one")
    assert progress.rounds == [2, 3], "seed 0 has finished"
    assert read_run("one").result["seeds"] == [0, 1] and read_run("one").status == {
        "state": "finished"
    }
    interrupted(three, "one", after=1, seed=2)
    assert read_run("one").result is None and read_run("one").config["seeds"] == [0, 1, 2]
    assert resumed(three, "one").rounds == [1, 2, 3]
    for seed in range(3):
        same(f"one/seed-{seed}", f"whole/seed-{seed}")
    found = read_run("one").result
    for name in set(expected) - {"run", "seconds"}:
        assert found[name] == json.loads(json.dumps(expected[name])), name
    assert resumed(three, "one").notes == ["'one' holds this run, and it has finished."]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"training__lr": 0.3}, r"training.lr is 0.01 there and 0.3 here"),
        ({"algorithm__name": "fedavg"}, r"algorithm.name is 'scaffold' there and 'fedavg' here"),
        ({"engine__name": "workers"}, r"engine.name is 'reference' there and 'workers' here"),
        ({"federation__rounds": 4}, r"federation.rounds is 3 there and 4 here"),
        ({"data__fraction": 0.2}, r"data.fraction is 0.1 there and 0.2 here"),
        ({"seed": 1}, r"holds a run with seed 0\."),
        ({"seeds": [0, 1]}, r"seed 0. Seeds can be added to a run of several seeds"),
    ],
)
def test_another_run_is_never_mixed_in(folder, overrides, reason):
    interrupted(config(), "one", after=2)
    before = {path: path.read_bytes() for path in Path("one").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=reason):
        run(config(**overrides), out="one")
    assert before == {path: path.read_bytes() for path in Path("one").rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("engine.workers", 3),
        ("engine.ray_address", "auto"),
        ("data.dir", "elsewhere"),
        ("checkpoint.every", 5),
    ],
)
def test_what_changes_no_result_neither_refuses_a_folder_nor_renames_it(key, value):
    on_ray = {**SMALL, "engine": {"name": "ray"}}
    one = make_config(on_ray)
    other = make_config(on_ray, [(key, value)])
    refuse_other_configuration(other, one, Path("one"))
    first, second = make_jobs([one, other], Path("several"))
    assert first.folder == second.folder


def test_the_engine_is_closed_if_the_folder_cannot_be_written(folder, monkeypatch):
    closed = []
    monkeypatch.setattr(Reference, "close", lambda engine: closed.append(engine))
    Path("file").write_text("")
    with pytest.raises(RunError):
        run(config(), out="file/one")
    assert len(closed) == 1


def test_a_seed_cannot_be_taken_away(folder):
    interrupted(config(seeds=[0, 1]), "one", after=1)
    with pytest.raises(ConfigError, match=r"'one' holds a run with seeds 0, 1\. Choose"):
        run(config(seeds=[1, 2]), out="one")


def test_the_choice_of_the_engine_holds(folder, monkeypatch):
    from fedtailor.simulation.engines import build

    chosen = config(engine__name="auto", engine__workers=1)
    interrupted(chosen, "one", after=2)
    assert read_run("one").config["engine"]["name"] == "workers"
    monkeypatch.setattr(build, "_choose_name", lambda *_: ("batched", "another choice"))
    resumed(config(engine__name="auto", engine__workers=2), "one")
    assert read_run("one").config["engine"]["name"] == read_run("one").result["engine"] == "workers"
    run(config(engine__name="workers"), out="whole")
    same("one", "whole")


def test_a_damaged_checkpoint_is_not_used_and_that_is_said(folder):
    run(config(), out="whole")
    interrupted(config(), "one", after=3)
    newest = Path("one/checkpoints/000002.safetensors")
    raw = bytearray(newest.read_bytes())
    raw[len(raw) // 2] ^= 1
    newest.write_bytes(raw)
    progress = resumed(config(), "one")
    assert progress.rounds == [2, 3]
    assert progress.notes[0].startswith(
        "checkpoint not used: 'one/checkpoints/000002.safetensors' is damaged"
    )
    assert progress.notes[0] in [event.get("text") for event in read_run("one").events]
    same("one", "whole")


def test_a_checkpoint_whose_manifest_was_deleted_is_missed(folder):
    run(config(), out="whole")
    interrupted(config(), "one", after=3)
    Path("one/checkpoints/000002.json").unlink()
    progress = resumed(config(), "one")
    assert progress.rounds == [2, 3]
    assert "'one/checkpoints/000002.json' is damaged: it is missing" in progress.notes[0]
    assert progress.notes[1] == "resumed after round 1 of 3."
    assert progress.notes[2] == "rounds 2 to 3 are run again: no later checkpoint can be used."
    same("one", "whole")


@pytest.mark.parametrize("change", [{"seconds": "long"}, {"records": {}}])
def test_notes_of_a_checkpoint_that_are_not_ours(folder, change):
    run(config(), out="whole")
    interrupted(config(), "one", after=3)
    path = Path("one/checkpoints/000002.json")
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    manifest["notes"] |= change
    digest = hashlib.sha256(to_json(manifest).encode()).hexdigest()
    path.write_text(to_json({**manifest, "sha256": digest}) + "\n")
    progress = resumed(config(), "one")
    assert progress.rounds == [2, 3] and progress.notes[0].startswith("checkpoint not used: ")
    same("one", "whole")


def test_the_first_error_is_the_one_that_is_raised(folder, monkeypatch):
    from fedtailor.simulation.engines.reference import Reference

    def fail(*_):
        raise OSError(5, "a second error")

    monkeypatch.setattr(Reference, "close", fail)
    monkeypatch.setattr(Stop, "end", fail)
    interrupted(config(), "one", after=2)
    assert read_run("one").status == {"state": "interrupted", "rounds_done": 2}


def test_damaged_records_of_rounds_count_as_damage(folder):
    run(config(), out="whole")
    interrupted(config(), "one", after=3)
    lines = Path("one/rounds.jsonl")
    text = lines.read_text()
    lines.write_text(text[: text.index("\n") + 20])
    assert resumed(config(), "one").rounds == [2, 3]
    same("one", "whole")
    interrupted(config(), "two", after=3)
    Path("two/rounds.jsonl").write_text("nonsense")
    assert resumed(config(), "two").rounds == [1, 2, 3]
    same("two", "whole")


def test_a_run_does_not_go_on_with_other_data(folder):
    interrupted(config(), "one", after=2)
    provenance = Path("one/provenance.json")
    stored = json.loads(provenance.read_text())
    provenance.write_text(json.dumps({**stored, "split_sha256": "ab" * 32}))
    with pytest.raises(DataError, match=r"'one' cannot be resumed: its split had the digest abab"):
        run(config(), out="one")
    assert read_run("one").status["state"] == "interrupted"
    provenance.write_text(
        json.dumps({**stored, "versions": {**stored["versions"], "torch": "1.0"}})
    )
    progress = resumed(config(), "one")
    assert "torch 1.0 then" in progress.notes[1] and progress.rounds == [2, 3]


def test_an_edited_configuration_is_not_taken_for_that_of_the_rounds_before(folder):
    interrupted(config(training__lr=0.05), "one", after=2)
    file = Path("one/experiment.toml")
    text = file.read_text()
    file.write_text(text.replace("\nlr = 0.05\n", "\nlr = 0.5\n"))
    with pytest.raises(
        ConfigError, match=r"training\.lr was 0\.05 when the run began, and is 0\.5"
    ):
        run(load_config(file), out="one")

    # What changes no result may be another one.
    file.write_text(text.replace("\nevery = 1\n", "\nevery = 2\n"))
    assert resumed(load_config(file), "one").rounds == [2, 3]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seed = 0", "seed = 1", "seed was 0 when the run began, and is 1 now"),
        (
            "hidden = 5",
            "hidden = 5\nchannels1 = 3",
            "model.options.channels1 was not given when the run began",
        ),
    ],
)
def test_an_edited_seed_and_an_added_option_are_noticed(folder, old, new, said):
    interrupted(config(), folder / "run", after=1)
    path = folder / "run" / "experiment.toml"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=said):
        run(load_config(path), out=folder / "run")


def test_an_edited_split_is_written_again(folder):
    interrupted(config(), "one", after=2)
    file = Path("one/split.json")
    text = file.read_text()
    split = json.loads(text)
    split["clients"][1]["test"].pop()
    file.write_text(json.dumps(split))
    run(config(), out="one")
    assert file.read_text() == text


def test_a_run_of_an_own_method_that_has_changed_since_is_not_taken_for_it(folder, monkeypatch):
    """Neither a finished one, whose scores would be those of before, nor an interrupted one."""
    source = "from fedtailor.algorithms.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n"
    (folder / "changing_method.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    own = config(algorithm__name="changing_method:Mine", federation__rounds=2)
    run(own, out="finished")
    interrupted(own, "interrupted", after=1)
    assert "holds this run, and it has finished" in "".join(resumed(own, "finished").notes)

    (folder / "changing_method.py").write_text(f"{source}    # another version\n")
    for out in ("finished", "interrupted"):
        with pytest.raises(DataError, match=r"its file of algorithm\.name had"):
            run(own, out=out)


def test_a_run_does_not_go_on_with_another_encoder_or_another_network_of_some_clients(
    folder, monkeypatch
):
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("FEDTAILOR_CACHE", str(folder / "cache"))
    source = (
        "from torch import nn\nfrom tiny_encoders import Tiny\n\n\n"
        "def encoder():\n    return Tiny(seed={seed}).eval()\n\n\n"
        "def network(inputs, classes):\n    return nn.Sequential(nn.Flatten(), "
        "nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, classes))  # {seed}\n"
    )
    path = folder / "changing_networks.py"
    path.write_text(source.format(seed=0))
    sections = {
        "encoder": {"data__encoder": "changing_networks:encoder"},
        r"file of model\.others\.0": {
            "algorithm__name": "local",
            "model__others": ["changing_networks:network"],
        },
    }
    for number, changes in enumerate(sections.values()):
        interrupted(config(**changes), f"run-{number}", after=1)

    path.write_text(source.format(seed=1))
    sys.modules.pop("changing_networks")
    for number, (what, changes) in enumerate(sections.items()):
        with pytest.raises(DataError, match=f"its {what} had the digest"):
            run(config(**changes), out=f"run-{number}")


def test_provenance_is_that_of_the_software_with_which_a_run_begins(folder):
    interrupted(config(), "one", after=1)
    provenance = Path("one/provenance.json")
    stored = json.loads(provenance.read_text())
    provenance.write_text(json.dumps({**stored, "reduction": 1}))
    assert resumed(config(), "one").rounds == [1, 2, 3]
    assert read_run("one").provenance["reduction"] == stored["reduction"]


def test_a_run_that_another_process_writes_is_left_alone(folder):
    interrupted(config(), "one", after=2)
    with (
        exclusive(Path("one")),
        pytest.raises(ConfigError, match="another process is writing to 'one'"),
    ):
        run(config(), out="one")
    resumed(config(), "one")


def test_what_is_no_run_is_refused(folder):
    Path("taken").mkdir()
    Path("taken/notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="'taken' already exists, and is never overwritten"):
        run(config(), out="taken")


def test_who_gave_no_answer_in_a_round_that_runs_again_gives_none_again(folder, monkeypatch):
    """Whether a client answers in time cannot be computed again, so the events of lost rounds
    decide."""
    from fedtailor.core.engine import Failure, NoAnswer
    from fedtailor.simulation.engines.reference import Reference

    original = Reference.map
    unreachable = True

    def map_without_one(engine, program, common, jobs):
        outputs = original(engine, program, common, jobs)
        if unreachable and int(common.round) == 2 and finished_runs.is_training(program):
            outputs[0] = Failure(NoAnswer("no answer"))
        return outputs

    monkeypatch.setattr(Reference, "map", map_without_one)
    run(config(), out="whole")
    interrupted(config(), "one", after=2)
    with Path("one/events.jsonl").open("a") as file:
        file.write('{"kind": "absent", "rou')  # torn: the process was killed
    unreachable = False
    resumed(config(), "one")
    assert read_run("one").result["events"]["absent"] == 1
    same("one", "whole")


def test_a_resumed_run_keeps_the_device_that_auto_took(folder):
    begun = config(engine__device="cuda")
    assert with_first_choices(config(engine__device="auto"), begun, folder).engine.device == "cuda"
    assert (
        with_first_choices(config(engine__name="auto", engine__device="auto"), begun, folder).engine
        == begun.engine
    )
    here = with_first_choices(config(engine__name="auto"), begun, folder)
    with pytest.raises(ConfigError, match=r"engine\.device is 'cuda' there and 'cpu' here"):
        refuse_other_configuration(here, begun, folder)
