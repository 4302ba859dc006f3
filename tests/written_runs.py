"""Run folders with records that a test writes by hand."""

import json

import safetensors.numpy

from fedtailor.experiment.reader import SCHEMA_VERSION

ADAPTATIONS = {
    "personalized": "5 epochs of all layers",
    "global": "none",
    "local": "local training of the round",
}


def model_of(run, client, seed=None):
    """Return a client's tensors by path, and its model card, from the records of a run."""
    raw, card = run.of_seed(seed).model_file(client)
    return safetensors.numpy.load(raw), card


def write_run(
    path,
    scores,
    *,
    algorithm="fedavg",
    seed=0,
    new=None,
    finished=True,
    split="s",
    settings=(),
    **changes,
):
    """Write the folder of a run of one seed.

    Args:
        path: the folder.
        scores: the accuracies of the known clients, by evaluation point and client; None: a client
            without one.
        algorithm: its name.
        seed: of the run.
        new: the same of the new clients.
        finished: whether the run has a result.
        split: the digest of the split.
        settings: further lines of the configuration, by section.
        changes: of the provenance.
    """
    provenance = {
        "schema": SCHEMA_VERSION,
        "versions": {"fedtailor": "0.1.0", "torch": "2.10.0"},
        "data": {"dataset": "digits", "sha256": "d"},
        "split_sha256": split,
        "reduction": 2,
        "engine": "reference",
        "device": "cpu",
        **changes,
    }
    results = {}
    lines = []
    for group, points in (("known", scores), ("new", new or {})):
        for point, by_client in points.items():
            labels = {
                "point": point,
                "adaptation": ADAPTATIONS[point],
                "test_set": "clients",
                "group": group,
            }
            results.setdefault(group, {})[point] = {**labels, "round": 3}
            lines += [
                {
                    "round": 3,
                    "client": client,
                    **labels,
                    "num_train": 10 + client,
                    "num_test": 8,
                    "accuracy": value,
                }
                for client, value in by_client.items()
            ]
    path.mkdir()
    (path / "experiment.toml").write_text(_config(algorithm, seed, dict(settings)))
    (path / "provenance.json").write_text(json.dumps(provenance))
    (path / "rounds.jsonl").write_text(_lines([{"round": 3, "cohort": [0, 1]}]))
    (path / "clients.jsonl").write_text(_lines(lines))
    if finished:
        result = {
            "metrics": results["known"],
            "new_clients": results.get("new", {}),
            "rounds": 3,
            "steps": 9,
        }
        (path / "result.json").write_text(json.dumps(result))
    return path


def _lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def _config(algorithm, seed, settings):
    sections = {
        "federation": {"rounds": 3, "participation": "all"},
        "training": {"epochs": 1},
        **settings,
    }
    lines = [f"seed = {seed}", "[algorithm]", f"name = {json.dumps(algorithm)}"]
    for section, values in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


def write_seeds(path, runs, **options):
    """Write the folder of a run of several seeds; ``runs`` holds the arguments of :func:`write_run`
    by seed."""
    config = _config(
        options.get("algorithm", "fedavg"), 0, dict(options.get("settings", ()))
    ).split("\n", 1)[1]
    config = f"seeds = {json.dumps(list(runs))}\n{config}"
    path.mkdir()
    (path / "experiment.toml").write_text(config)
    (path / "provenance.json").write_text(json.dumps({"schema": SCHEMA_VERSION}))
    (path / "result.json").write_text(json.dumps({"seeds": list(runs)}))
    for seed, scores in runs.items():
        write_run(path / f"seed-{seed}", scores, seed=seed, **options)
    return path
