"""Readers of our own files raise errors of the package only, whatever the files hold, in bounded
time and memory."""

import hashlib
import json
import os
import random
import resource
import shutil
import sys
import time
import tomllib
import traceback

import pytest
import tomli_w

import fedtailor
import finished_runs
from faults import mutations
from fedtailor.core.atomic import to_json
from fedtailor.core.errors import FedtailorError
from fedtailor.data import cache, load_dataset
from fedtailor.data.build import DataOptions
from fedtailor.data.division import divide
from fedtailor.experiment.config import load_config, make_config, to_toml
from fedtailor.experiment.folder import RunFolder
from fedtailor.experiment.predictions import read_predictions
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.tracking import RunProgress
from fedtailor.simulation.checkpoint import Checkpoints
from fedtailor.simulation.engines.store import Store

FULL = os.environ.get("FEDTAILOR_FAULTS") == "full"
LONGEST = 10.0
"""Seconds of the processor that a reader may take for a file."""
MOST_MEMORY = 2**20
"""Kilobytes by which the memory of this process may grow."""

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs pipes and links"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def _read_run(folder):
    run = read_run(folder)
    clients = [record.get("client") for record in run.clients]
    for client in [*clients[:3], "0"]:
        run.model_file(str(client))


def _read_checkpoints(folder):
    place = folder / "checkpoints"
    kept = {
        name: Store(place, name, modules=["fedtailor"], in_memory=2**20)
        for name in ("states", "per_client")
    }
    restored, _ = Checkpoints(place, kept, modules=["fedtailor"]).restore(
        lambda notes: RunFolder(folder).objection(notes.get("records"))
    )
    if restored is not None:
        for store in kept.values():
            for client in store:
                store[client]
    RunFolder(folder).absences(after=0)


def _read_cached(folder):
    cache._read(folder / "cached", (folder / "signature").read_text())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder with one of each kind of file."""
    folder = tmp_path_factory.mktemp("corpus")
    settings = finished_runs.settings("scaffold")
    fedtailor.run(make_config(settings), out=folder / "run")
    killed = folder / "killed"
    with pytest.raises(KeyboardInterrupt):
        fedtailor.run(make_config(settings), out=killed, progress=_Stop())
    (folder / "run" / "events.jsonl").write_text('{"kind": "note", "round": 1, "text": "a note"}\n')
    with (killed / "events.jsonl").open("a") as file:
        file.write(
            '{"kind": "absent", "round": 9, "client": 1, "reason": "no answer", "stage": "train"}\n'
        )
    (folder / "config.toml").write_text(to_toml(make_config(settings)))
    shutil.copy(folder / "run" / "split.json", folder)
    dataset = load_dataset("digits")
    signature = "ab" * 32
    (folder / "signature").write_text(signature)
    cache._write(folder / "cached", signature, dataset)
    return folder


class _Stop(RunProgress):
    def round(self, record):
        if record["round"] == finished_runs.ROUNDS:
            raise KeyboardInterrupt


def _resign_manifest(path):
    """Give a manifest the digest that it needs, as a stranger would."""
    try:
        manifest = json.loads(path.read_text())
        del manifest["sha256"]
        text = to_json(manifest)
        path.write_text(
            to_json({**manifest, "sha256": hashlib.sha256(text.encode()).hexdigest()}) + "\n"
        )
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        pass


def _resign_content(path):
    """Give a file of a checkpoint the place in its manifest that it needs."""
    manifest_path = path.with_suffix(".json")
    manifest = json.loads(manifest_path.read_text())
    raw = path.read_bytes()
    manifest["content"] = [len(raw), hashlib.sha256(raw).hexdigest()]
    manifest_path.write_text(json.dumps(manifest))
    _resign_manifest(manifest_path)


def _resign_model(path):
    card = path.with_suffix(".json")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    card.write_text(json.dumps({**json.loads(card.read_text()), "sha256": digest}))


def targets(corpus):
    """Return (file, its reader, the folder that is given to it, how a stranger would make the rest
    agree)."""
    dataset = load_dataset("digits")
    found = []
    for name in ("experiment.toml", "provenance.json", "status.json", "split.json", "result.json"):
        found.append((corpus / "run" / name, _read_run, corpus / "run", None))
    for name in ("rounds.jsonl", "clients.jsonl", "events.jsonl", "models/0.json"):
        found.append((corpus / "run" / name, _read_run, corpus / "run", None))
    found.append(
        (corpus / "run" / "models" / "0.safetensors", _read_run, corpus / "run", _resign_model)
    )
    predictions = corpus / "run" / "predictions.safetensors"
    found.append((predictions, read_predictions, predictions, None))
    for path in sorted((corpus / "killed" / "checkpoints").iterdir()):
        resign = {".json": _resign_manifest, ".safetensors": _resign_content}.get(path.suffix)
        found.append((path, _read_checkpoints, corpus / "killed", resign))
    for name in ("rounds.jsonl", "events.jsonl"):
        found.append((corpus / "killed" / name, _read_checkpoints, corpus / "killed", None))
    found.append((corpus / "config.toml", load_config, corpus / "config.toml", None))
    found.append(
        (
            corpus / "split.json",
            lambda path: divide(DataOptions(split=str(path)), run_seed=0, dataset=dataset),
            corpus / "split.json",
            None,
        )
    )
    found.append((corpus / "cached" / "meta.json", _read_cached, corpus, None))
    found.append((corpus / "cached" / "x.npy", _read_cached, corpus, None))
    return found


def spoil(chance, path, resign):
    """Change the file at a path; return what was done."""
    raw = path.read_bytes()
    kind = chance.random()
    if kind < 0.1:
        path.unlink()
        return mutations.put_no_file(chance, path)
    text_of = {
        ".json": mutations.mutate_json,
        ".jsonl": mutations.mutate_json,
        ".safetensors": mutations.mutate_header,
    }
    mutate = text_of.get(path.suffix)
    if path.suffix == ".toml":
        mutate = mutate_toml
    if mutate is None or kind < 0.5:
        mutate = mutations.mutate_bytes
    path.write_bytes(mutate(chance, raw))
    if resign is not None and chance.random() < 0.8:
        resign(path)
    return mutate.__name__


def mutate_toml(chance, raw):
    while True:
        try:
            return tomli_w.dumps(
                mutations.mutate_value(chance, tomllib.loads(raw.decode()))
            ).encode()
        except (
            TypeError,
            AttributeError,
            ValueError,
            RecursionError,
        ):  # TOML cannot hold every value
            continue


def unexpected(read, given):
    """Return what a reader raised that it must not raise, or that it took too long."""
    start = time.process_time()
    try:
        read(given)
    except FedtailorError as error:
        try:
            str(error).encode(errors="replace")
            json.dumps(error.as_record())
        except Exception:
            return "its error cannot be shown"
    except BaseException:  # a panic of a library is not an Exception
        return traceback.format_exc(limit=-4)
    seconds = time.process_time() - start
    return f"{seconds:.1f} s" if seconds > LONGEST else ""


def fuzz(corpus, tmp_path, count, seed, chosen=None):
    """Mutate so many files, and return what was wrong."""
    chance = random.Random(seed)
    problems = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work = tmp_path / "work"
    shutil.copytree(corpus, work)
    cases = [case for case in targets(corpus) if chosen is None or case[0].name == chosen]
    for number in range(count):
        path, read, given, resign = cases[number % len(cases)]
        group = corpus / path.relative_to(corpus).parts[0]
        copied = work / group.relative_to(corpus)
        place = work / path.relative_to(corpus)
        done = spoil(chance, place, resign)
        wrong = unexpected(read, work / given.relative_to(corpus))
        if wrong:
            problems.append(f"{number}, {path.relative_to(corpus)}, {done}: {wrong}")
        restore(group, copied)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if grown > MOST_MEMORY:
        problems.append(f"the memory grew by {grown} KB")
    return problems


def restore(original, copied):
    if copied.is_symlink() or not copied.is_dir():
        copied.unlink(missing_ok=True)
    else:
        shutil.rmtree(copied)
    if original.is_dir():
        shutil.copytree(original, copied)
    else:
        shutil.copy(original, copied)


def test_what_was_written_is_read(corpus, tmp_path):
    work = tmp_path / "work"
    shutil.copytree(corpus, work)
    for path, read, given, _ in targets(corpus):
        read(work / given.relative_to(corpus))
        assert path.exists()


def test_mutated_files(corpus, tmp_path):
    assert fuzz(corpus, tmp_path, 150, seed=0) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_mutated_files(corpus, tmp_path, seed):
    assert fuzz(corpus, tmp_path, 2500 if FULL else 400, seed) == []


@pytest.mark.slow
def test_mutated_configurations(corpus, tmp_path):
    assert fuzz(corpus, tmp_path, 500, seed=0, chosen="config.toml") == []
