"""Kills runs at file operations, resumes them, and compares: python killed_runs.py FOLDER ALGORITHM MOMENT ...

A moment is a fraction of all file operations (fsync, replace, truncate) of the run. This process imports everything
once; each run that is killed is a fork of it. It prints one JSON object: the problems that were found, and after how
many rounds each run was killed.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

OPERATIONS = ("fsync", "replace", "truncate")
ROUNDS = 3


def configuration(algorithm):
    """Return a small run: three of five clients take part in a round."""
    from fedtailor.experiment.config import make_config

    return make_config(
        {
            "seed": 1,
            "data": {"dataset": "digits", "clients": 5, "partition": "dirichlet(alpha=0.5)", "fraction": 0.1},
            "model": {"name": "mlp", "options": {"hidden": 6}},
            "algorithm": {"name": algorithm},
            "training": {"epochs": 1},
            "federation": {"rounds": ROUNDS, "participation": "fixed(3)"},
            "evaluation": {"every": 1},
            "engine": {"name": "reference"},
        }
    )


def content(folder):
    """Return everything in a run folder that must not depend on an interruption."""
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    for record in (result, *rounds):
        del record["seconds"]
    del result["run"]
    final = folder / "checkpoints" / f"{ROUNDS:06d}.safetensors"
    return {
        "rounds": rounds,
        "result": result,
        "clients": (folder / "clients.jsonl").read_text(),
        "split": (folder / "split.json").read_text(),
        "models": {path.name: path.read_bytes() for path in sorted((folder / "models").iterdir())},
        "status": json.loads((folder / "status.json").read_text()),
        "server": decoded(final)["server"],
        "leftovers": sorted(str(path) for path in folder.rglob("*tmp*")),
    }


def decoded(path):
    from fedtailor.core import tree
    from fedtailor.core.codec import decode

    value = decode(path.read_bytes(), modules=["fedtailor"])
    return {"server": {name: leaf.numpy().tobytes() for name, leaf in tree.paths(value["server"]).items()}}


def is_training(program):
    """Return whether an engine's program is a client's round."""
    return getattr(program, "func", program).__name__ == "train_program"


def in_fork(action):
    """Run an action in a fork of this process; return how the fork ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def watch(operation):
    """Call ``operation(number)`` before and after every file operation, with its number from 0."""
    numbers = iter(range(10**9))

    def wrap(original):
        def wrapped(*arguments, **named):
            operation(next(numbers))
            done = original(*arguments, **named)
            operation(next(numbers))
            return done

        return wrapped

    for name in OPERATIONS:
        setattr(os, name, wrap(getattr(os, name)))


def main(folder, algorithm, moments):
    """Print the problems."""
    from fedtailor.experiment.run import run

    config = configuration(algorithm)
    run(config, out=folder / "whole")
    expected = content(folder / "whole")
    count = folder / "count"

    def counted():
        seen = []
        watch(seen.append)
        run(config, out=folder / "counted")
        count.write_text(str(len(seen)))

    in_fork(counted)
    total = int(count.read_text())
    problems = []
    rounds = []
    for moment in moments:
        place = min(int(moment * total), total - 1)
        killed = folder / "killed"

        def to_be_killed(place=place):
            watch(lambda number: number == place and os.kill(os.getpid(), signal.SIGKILL))
            run(config, out=folder / "killed")

        if in_fork(to_be_killed) != signal.SIGKILL:
            problems.append(f"{place} of {total}: was not killed")
        lines = killed / "rounds.jsonl"
        done = lines.read_text().count("\n") if lines.exists() else 0
        rounds.append(done)
        had_finished = (killed / "result.json").exists()
        run(config, out=killed)
        found = content(killed)
        problems += [f"{place} of {total}: {name} differs" for name in expected if found[name] != expected[name]]
        resumed = [event.get("round", 0) for event in events(killed) if "resumed after" in event.get("text", "")]
        if done > 1 and not resumed and not had_finished:
            problems.append(f"{place} of {total}: began again after {done} rounds")
        if resumed and resumed[0] < done - 1:
            problems.append(f"{place} of {total}: lost more than one of {done} rounds")
        shutil.rmtree(killed)
        for path in folder.glob(".*.tmp"):  # of a run that was killed before its folder was there
            shutil.rmtree(path)
    print(json.dumps({"problems": problems, "rounds": rounds, "operations": total}))


def events(folder):
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [float(text) for text in sys.argv[3:]])
