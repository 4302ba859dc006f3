"""A small run to interrupt, and what must not depend on interruptions, engines and attempts."""

import json
from dataclasses import replace

from fedtailor.testing.runs import assert_same_bits

ROUNDS = 3
REPORTED = ("round", "cohort", "trained", "metrics", "events", "bytes_up", "bytes_down", "steps")


def settings(algorithm, engine="reference", seed=1):
    """Return the configuration of a small run: two of five clients take part in a round."""
    return {
        "seed": seed,
        "data": {
            "dataset": "digits",
            "clients": 5,
            "partition": "dirichlet(alpha=0.5)",
            "fraction": 0.1,
        },
        "model": {"name": "mlp", "options": {"hidden": 6}},
        "algorithm": {"name": algorithm},
        "training": {"epochs": 1},
        "federation": {"rounds": ROUNDS, "participation": "fixed(2)"},
        "evaluation": {"every": 1},
        "engine": {
            "name": engine,
            **({"workers": 2} if engine in ("workers", "processes") else {}),
        },
    }


def content(folder):
    """Return everything in a run folder that must not depend on an interruption."""
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    for record in (result, *rounds):
        del record["seconds"]
    del result["run"]
    ledger = folder / "privacy.jsonl"
    final = folder / "checkpoints" / f"{rounds[-1]['round']:06d}.safetensors"
    return {
        "rounds": rounds,
        "result": result,
        "clients": (folder / "clients.jsonl").read_text(),
        "ledger": ledger.read_text() if ledger.exists() else "",
        "split": (folder / "split.json").read_text(),
        "predictions": (folder / "predictions.safetensors").read_bytes(),
        "models": {path.name: path.read_bytes() for path in sorted((folder / "models").iterdir())},
        "status": json.loads((folder / "status.json").read_text()),
        "server": server_state(final),
        "leftovers": sorted(str(path) for path in folder.rglob("*tmp*")),
    }


def server_state(path):
    """Return the tensors of the server in the last checkpoint, as bytes."""
    from fedtailor.core import tree
    from fedtailor.core.codec import decode

    value = decode(path.read_bytes(), modules=["fedtailor"])
    return {name: leaf.numpy().tobytes() for name, leaf in tree.paths(value["server"]).items()}


def is_training(program):
    """Return whether an engine's program is a client's round."""
    return getattr(program, "func", program).__name__ == "train_program"


def assert_same_reports(found, expected):
    """Check that reports are equal: numbers bit for bit, all else as it is, only times may
    differ."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name in REPORTED:
            assert getattr(one, name) == getattr(other, name), name

        assert len(one.evaluations) == len(other.evaluations)
        for evaluation, same in zip(one.evaluations, other.evaluations, strict=True):
            assert replace(evaluation, scores={}) == replace(same, scores={})
            assert list(evaluation.scores) == list(same.scores)
            for client, scores in evaluation.scores.items():
                assert_same_bits(scores, same.scores[client])

        assert list(one.personal) == list(other.personal)
        for client, personal in one.personal.items():
            assert_same_bits(personal, other.personal[client])

        assert_same_bits(one.state.server, other.state.server)
        assert replace(one.state, server=()) == replace(other.state, server=())
