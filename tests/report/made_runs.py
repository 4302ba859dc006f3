"""Run folders with the files of real ones, made of numbers at once: of any size, and with any
names."""

import json
import random

from fedtailor.experiment.reader import SCHEMA_VERSION

CLASSES = 10


def config(algorithm, *, clients, rounds, seed, dataset="fashion_mnist", penalty=0.5):
    return (
        f"seed = {seed}\n[data]\ndataset = {json.dumps(dataset)}\nclients = {clients}\n"
        f"[algorithm]\nname = {json.dumps(algorithm)}\npenalty = {penalty}\n[federation]\nrounds = "
        f"{rounds}\n"
    )


def scores(chance, accuracy):
    """Return the scores of a client, in the form of ``clients.jsonl``."""
    right = round(20 * accuracy)
    return {
        "num_train": chance.randint(10, 200),
        "num_test": 20,
        "accuracy": right / 20,
        "balanced_accuracy": right / 20,
        "loss": 1.0,
        "ece": 0.1,
        "recall": {"0": 0.5},
        "bins": [[7, 8, 4.1, 3], [14, 12, 11.8, max(0, right - 3)]],
        "confusion": [[0, 0, right], [3, 0, 20 - right]],
    }


def evaluation(point, clients, mean):
    spread = {
        "pooled": mean,
        "smallest10": mean - 0.1,
        "mean": mean,
        "std": 0.1,
        "worst10": mean - 0.2,
        "min": 0.0,
    }
    metrics = {
        "accuracy": spread,
        "ece": {"pooled": 0.1, "mean": 0.2},
        "clients": {"evaluated": clients},
    }
    return {
        "point": point,
        "adaptation": "none",
        "test_set": "clients",
        "group": "known",
        "metrics": metrics,
    }


def write_run(
    folder,
    algorithm="ditto",
    *,
    clients=4,
    rounds=3,
    seed=0,
    every=1,
    state="finished",
    done=None,
    points=("personalized", "global"),
    client_names=(),
    class_names=(),
    dataset="fashion_mnist",
    penalty=0.5,
    diagnostics=None,
    training=None,
    condition="",
    events=(),
    process=None,
):
    """Write the folder of a run of one seed, and return it. ``done`` rounds of it were made."""
    chance = random.Random(f"{algorithm} {seed}")
    done = rounds if done is None else done
    folder.mkdir(parents=True)
    (folder / "models").mkdir()
    text = config(
        algorithm, clients=clients, rounds=rounds, seed=seed, dataset=dataset, penalty=penalty
    )
    (folder / "experiment.toml").write_text(text)
    status = {"state": state, "rounds_done": done, **({"process": process} if process else {})}
    (folder / "status.json").write_text(json.dumps(status))
    provenance = {
        "schema": SCHEMA_VERSION,
        "versions": {"fedtailor": "0.1.0"},
        "commit": "abc",
        "data": {"dataset": dataset, "sha256": "1" * 64},
        "split_sha256": "0" * 64,
        "notes": [],
    }
    (folder / "provenance.json").write_text(json.dumps(provenance))
    (folder / "split.json").write_text(
        json.dumps({"split_sha256": "0" * 64, "client_names": list(client_names)})
    )
    lines = []
    by_client = []
    skill = [chance.random() for _ in range(clients)]
    for number in range(1, done + 1):
        evaluations = []
        for client in range(clients):
            metrics = {
                "loss": 1 / number,
                **{name: value(client, number) for name, value in (training or {}).items()},
            }
            by_client.append(
                {
                    "round": number,
                    "client": client,
                    "point": "training",
                    "training_metrics": metrics,
                }
            )
        if number % every == 0 or number == rounds:
            for place, point in enumerate(points):
                evaluations.append(
                    evaluation(point, clients, 0.3 + 0.5 * number / rounds - 0.1 * place)
                )
                for client in range(clients):
                    labels = {"adaptation": "none", "test_set": "clients", "group": "known"}
                    own = scores(chance, min(1.0, 0.5 * skill[client] + 0.5 * number / rounds))
                    line = {"round": number, "client": client, "point": point, **labels, **own}
                    if condition:
                        line["condition"] = condition if client % 2 else "clean"
                    if diagnostics:
                        line["diagnostics"] = {
                            name: value(client) for name, value in diagnostics.items()
                        }
                    by_client.append(line)
        lines.append(
            {
                "round": number,
                "cohort": list(range(clients)),
                "steps": clients,
                "bytes": {"up": 1000 * clients, "down": 1000 * clients},
                "seconds": {"train": 0.5, "aggregate": 0.001, "evaluate": 0.1},
                "training_metrics": {"loss": 1 / number},
                "evaluations": evaluations,
            }
        )
    write_lines(folder / "rounds.jsonl", lines)
    write_lines(folder / "clients.jsonl", by_client)
    if events:
        write_lines(folder / "events.jsonl", events)
    if state == "finished":
        final = {
            each["point"]: {"round": done, "adaptation": "none", **each["metrics"]}
            for each in evaluations
        }
        result = {
            "run": str(folder),
            "algorithm": algorithm,
            "rounds": done,
            "seeds": [seed],
            "metrics": final,
        }
        (folder / "result.json").write_text(json.dumps(result))
        for client in range(clients):
            counts = [chance.randint(0, 30) for _ in range(CLASSES)]
            card = {
                "client": str(client),
                "number": client,
                "class_counts": counts,
                "class_names": list(class_names),
            }
            (folder / "models" / f"{client}.json").write_text(json.dumps(card))
    return folder


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_seeds(folder, algorithm, seeds, **options):
    """Write the folder of a run of several seeds, and return it."""
    folder.mkdir(parents=True)
    shared = {
        name: options.get(name, default) for name, default in {"clients": 4, "rounds": 3}.items()
    }
    text = config(algorithm, seed=0, **shared).replace("seed = 0", f"seeds = {list(seeds)}")
    (folder / "experiment.toml").write_text(text)
    (folder / "status.json").write_text(json.dumps({"state": "finished"}))
    (folder / "provenance.json").write_text(json.dumps({"schema": SCHEMA_VERSION}))
    for seed in seeds:
        write_run(folder / f"seed-{seed}", algorithm, seed=seed, **options)
    return folder
