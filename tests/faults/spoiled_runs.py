"""Spoils runs and lets them go on: python spoiled_runs.py FOLDER SPECIFICATION, which is JSON.

The process imports everything once, and every run is a fork of it. It prints one JSON object.
"""

import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import finished_runs
from faults import file_operations

LOG = "output.log"
STATES = ("interrupted", "finished", "failed")


def main(folder, specification):
    """Print the problems that were found, and counts."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    bench = Bench(folder, **specification["run"])
    kinds = {
        "operations": at_operations,
        "disks": on_full_disks,
        "moments": at_moments,
        "damage": damaged,
        "races": races,
    }
    outcomes = []
    for job in specification["jobs"]:
        kind = job.pop("kind")
        outcomes.append({"kind": kind, **job, **kinds[kind](bench, **job)})
    print(json.dumps({"outcomes": outcomes, "problems": bench.problems}))


class Bench:
    """A folder for runs of one configuration, and the uninterrupted run to compare with."""

    def __init__(self, folder, algorithm, engine="reference", privacy=None, every=1):
        import tomli_w

        from fedtailor.algorithms import load_algorithm

        self.folder = folder / "bench"
        self.folder.mkdir()
        self.run = self.folder / "run"
        self.config = folder / "config.toml"
        self.is_noisy = bool(privacy)
        changes = {"privacy": privacy or {}, "checkpoint": {"every": every}}
        self.config.write_text(tomli_w.dumps(finished_runs.settings(algorithm, engine) | changes))
        self.every = every
        self.log = folder / LOG
        self.problems = []
        self.engine = engine
        load_algorithm(algorithm)  # its types, to read the server state
        whole = folder / "whole"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        tempfile.tempdir = str(self.temporary)
        self.import_everything(folder / "warm")
        self.start(whole)
        self.expected = finished_runs.content(whole)

    def import_everything(self, out):
        """Import in this process what a run imports, as a run in a fork tells.

        This process itself computes nothing: libraries of linear algebra may crash in the threads
        of a fork if the process before it had used them already (about once in 300 runs).
        """
        import tomli_w

        config = out.with_suffix(".toml")
        settings = tomllib.loads(self.config.read_text())
        settings["engine"] = {"name": "reference"}
        config.write_text(tomli_w.dumps(settings))
        names = out.with_suffix(".json")

        def run_and_tell():
            code = self.command_line(out, config=config)
            names.write_text(json.dumps(list(sys.modules)))
            return code

        assert wait(in_fork(run_and_tell)) == 0
        for name in json.loads(names.read_text()):
            with contextlib.suppress(
                ImportError
            ):  # names that are made while another module is imported
                importlib.import_module(name)

    def start(self, out=None, prepare=None):
        """Start the run, or let it go on; return its exit code, or minus the signal that ended
        it."""
        return wait(in_fork(lambda: self.command_line(out, prepare)))

    def command_line(self, out=None, prepare=None, config=None):
        """Return the exit code of the command in this process, whose output goes to the log."""
        from fedtailor.cli.main import main as command_line

        with self.log.open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        if prepare is not None:
            prepare()
        return command_line(["run", str(config or self.config), "--out", str(out or self.run)])

    def check(self, case, codes, states):
        """Check the folder after a fault, let the run go on, check it again, and remove it."""
        from fedtailor.core.errors import FedtailorError
        from fedtailor.experiment.reader import read_run

        before = None
        if self.run.exists():
            try:
                before = read_run(self.run)
                recorded = (
                    (self.run / "rounds.jsonl").read_bytes().count(b"\n") if before.rounds else 0
                )
                if before.status["state"] not in states or before.status["rounds_done"] != recorded:
                    self.problems.append(f"{case}: exit codes {codes}, status {before.status}")
                self.check_ledger(case, before.rounds)
            except FedtailorError as error:
                self.problems.append(f"{case}: {error}")

        self.let_a_day_pass()
        code = self.start()
        if code != 0:
            self.problems.append(f"{case}: exit code {code} when it goes on: {self.last_words()}")
        else:
            self.compare(case)
        if before is not None and before.result is None:
            self.check_loss(case, len(before.rounds))
        self.clear(case)
        return len(before.rounds) if before is not None else 0

    def let_a_day_pass(self):
        """Make what a killed process has left beside the run so old that a start removes it."""
        for unfinished in self.folder.glob(".*.fedtailor.tmp"):
            os.utime(unfinished, (0, 0))

    def check_ledger(self, case, rounds):
        """Check that no round of the records was released without its entries in the ledger."""
        released = [line["round"] for line in rounds] if self.is_noisy else []
        path = self.run / "privacy.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        entered = sorted({json.loads(line)["round"] for line in whole})
        if entered[: len(released)] != released or len(whole) != len(set(whole)):
            self.problems.append(f"{case}: rounds {released}, but in the ledger {entered}")

    def operations(self):
        """Return the places of all file operations of the run."""
        places = self.folder.parent / "places"

        def prepare():
            def write(number, name):
                places.write_text(json.dumps(watched.places))

            watched = file_operations.watch(self.folder, after=write)

        if not places.exists():
            self.start(prepare=prepare)
            self.clear("counting")
        return json.loads(places.read_text())

    def last_words(self):
        return " ".join(self.log.read_text(errors="replace").split())[-300:]

    def compare(self, case):
        found = finished_runs.content(self.run)
        self.problems += [
            f"{case}: {name} differs"
            for name in self.expected
            if found[name] != self.expected[name]
        ]

    def check_loss(self, case, done):
        """Check that no more rounds ran twice than those since the last checkpoint."""
        resumed = [
            event.get("round", 0)
            for event in self.events()
            if "resumed after" in event.get("text", "")
        ]
        if done - max(resumed, default=0) > self.every:
            self.problems.append(f"{case}: went on after {resumed} of {done} rounds")

    def events(self):
        path = self.run / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def leftovers(self):
        """Return what is in the folder besides the finished run."""
        files = [path.relative_to(self.folder) for path in self.folder.rglob("*")]
        left = [
            path
            for path in files
            if path.name.startswith(".") or "tmp" in path.name or path.name == "state"
        ]
        return [str(path) for path in (*left, *self.temporary.glob("*fedtailor*"))]

    def clear(self, case):
        left = self.leftovers()
        if left:
            self.problems.append(f"{case}: left over: {left}")
        shutil.rmtree(self.folder)
        self.folder.mkdir()


def in_fork(action):
    """Start an action in a fork of this process; its exit code is what it returns. Return the
    number of the fork."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        code = action()
    finally:
        os._exit(code)


def wait(pid):
    """Return the exit code of a fork, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def at_operations(bench, fault, part=0, parts=1, moments=None, file=""):
    """Put a fault in at single operations: at all of a part, or at moments from 0 to 1.

    With the name of a file, only operations on it count.
    """
    operations = bench.operations()
    total = len(operations)
    signals = fault in ("kill", "SIGINT", "SIGTERM")
    places = [
        number
        for number in range(2 * total)
        if (signals or number % 2 == 0) and operations[number // 2].endswith(file)
    ]
    places = (
        places[part::parts]
        if moments is None
        else [places[int(moment * len(places))] for moment in moments]
    )
    codes = {"kill": [-signal.SIGKILL], "SIGINT": [6], "SIGTERM": [6]}.get(fault, [0, 5])
    ended = {}
    rounds = []
    for place in places:
        case = f"{fault} at {place / 2} of {total}"
        code = bench.start(
            prepare=lambda place=place: file_operations.inject(bench.folder, place, fault)
        )
        ended[code] = ended.get(code, 0) + 1
        if code not in codes:
            bench.problems.append(f"{case}: exit code {code}: {bench.last_words()}")
        if fault != "kill" and fault != "broken" and code != 0 and bench.leftovers():
            bench.problems.append(f"{case}: not removed at once: {bench.leftovers()}")
        states = {0: ["finished"], 5: ["failed"], 6: ["interrupted"]}.get(code, STATES)
        if fault == "broken":
            states = STATES
        rounds.append(bench.check(case, codes, states))
    return {"cases": len(places), "operations": total, "ended": ended, "rounds": rounds}


def on_full_disks(bench, budgets):
    """Run on disks of fractions of the space that the run needs."""
    bench.start()
    need = sum(
        -(-path.stat().st_size // 4096) * 4096 for path in bench.run.rglob("*") if path.is_file()
    )
    bench.clear("measuring")
    ended = {}
    for fraction in budgets:
        budget = int(fraction * need)
        case = f"a disk of {budget} bytes"
        code = bench.start(prepare=lambda budget=budget: file_operations.fill(bench.folder, budget))
        ended[code] = ended.get(code, 0) + 1
        if code not in (0, 5):
            bench.problems.append(f"{case}: exit code {code}: {bench.last_words()}")
        status = bench.run / "status.json"
        if (
            code == 5
            and bench.run.exists()
            and not (status.exists() and "No space left" in status.read_text())
        ):
            bench.problems.append(f"{case}: the status does not say so")
        bench.check(case, [code], ["finished"] if code == 0 else ["failed"])
    return {"cases": len(budgets), "ended": ended}


def at_moments(bench, count, seed):
    """Kill at random moments of the time that a run takes."""
    chance = random.Random(seed)
    start = time.monotonic()
    bench.start()
    length = time.monotonic() - start
    bench.clear("measuring")
    rounds = []
    killed = 0
    for number in range(count):
        pid = in_fork(bench.command_line)
        moment = chance.random() * length * 1.02
        time.sleep(moment)
        os.kill(pid, signal.SIGKILL)
        killed += wait(pid) == -signal.SIGKILL
        rounds.append(
            bench.check(f"{bench.engine}, kill {number} after {moment:.3f} s", [-9], STATES)
        )
    return {"cases": count, "killed": killed, "rounds": rounds, "seconds": length}


def damaged(bench, count, seed):
    """Flip a bit of a checkpoint file, or cut it, and let the run go on."""
    chance = random.Random(seed)
    original = bench.folder.parent / "original"

    def stop_before_the_end():
        def before(number, name):
            if (bench.run / "models").exists():
                os.kill(os.getpid(), signal.SIGKILL)

        file_operations.watch(bench.folder, before)

    if bench.start(prepare=stop_before_the_end) != -signal.SIGKILL:
        bench.problems.append("the run was not killed after its last round")
    shutil.copytree(bench.run, original)
    names = [
        path.name
        for path in sorted((original / "checkpoints").iterdir())
        if is_needed(original, path.name)
    ]
    outcomes = {}
    for number in range(count):
        shutil.rmtree(bench.run)
        shutil.copytree(original, bench.run)
        name = names[number % len(names)]
        path = bench.run / "checkpoints" / name
        raw = bytearray(path.read_bytes())
        place = chance.randrange(len(raw))
        if chance.random() < 0.5:
            raw[place] ^= 1 << chance.randrange(8)
            case = f"{name}: bit flipped in byte {place} of {len(raw)}"
        else:
            del raw[place:]
            case = f"{name}: cut to {place} bytes"
        path.write_bytes(raw)
        if bench.start() != 0:
            bench.problems.append(f"{case}: {bench.last_words()}")
            continue
        bench.compare(case)
        outcome = outcome_of(bench, name)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        if outcome == "unnoticed":
            bench.problems.append(f"{case}: {outcome}")
    shutil.rmtree(original)
    bench.clear("damage")
    return {"cases": count, "files": names, "outcomes": outcomes}


def outcome_of(bench, name):
    texts = [event.get("text", "") for event in bench.events()]
    if any("begins again" in text for text in texts):
        return "began again"
    said = [text for text in texts if f"/{name}'" in text]
    if not said:
        return "unnoticed"
    return "checkpoint before used"


def is_needed(original, name):
    """Return whether the last checkpoint needs a file."""
    manifest = max((original / "checkpoints").glob("*.json"))
    stem = name.partition(".")[0]
    stores = json.loads(manifest.read_text())["stores"]
    used = [
        f"{store}-{int(number):06d}.trees" for store, files in stores.items() for number in files
    ]
    return stem == manifest.stem or name in used


def races(bench, count, racers=3):
    """Start several runs for one folder at once; two of them have another seed."""
    import tomli_w

    configs = []
    expected = []
    seeds = racers if count > 1 else 1
    for seed in range(seeds):
        path = bench.folder.parent / f"config-{seed}.toml"
        whole = bench.folder.parent / f"whole-{seed}"
        path.write_text(tomli_w.dumps(finished_runs.settings("fedavg", seed=seed)))
        configs.append(path)
        wait(in_fork(lambda path=path, whole=whole: bench.command_line(whole, config=path)))
        expected.append(finished_runs.content(whole))
    ended = {}
    for number in range(count):
        given = configs if number % 2 else [configs[0]] * racers
        if number % 4 > 1:
            bench.run.mkdir()
        gate, opener = os.pipe()

        def wait_for_the_others(gate=gate, opener=opener):
            os.close(opener)
            os.read(gate, 1)

        pids = [
            in_fork(
                lambda config=config: bench.command_line(prepare=wait_for_the_others, config=config)
            )
            for config in given
        ]
        os.close(gate)
        os.close(opener)
        codes = [wait(pid) for pid in pids]
        for code in codes:
            ended[code] = ended.get(code, 0) + 1
        if 0 not in codes or set(codes) - {0, 3}:
            bench.problems.append(f"race {number}: exit codes {codes}: {bench.last_words()}")
        if finished_runs.content(bench.run) not in expected:
            bench.problems.append(f"race {number}: mixed")
        bench.clear(f"race {number}")
    return {"cases": count, "ended": ended}


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
