"""The page docs/performance.md, from the records under benchmarks/results."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
NAMES = {
    "ours": "fedtailor, threads",
    "ours_processes": "fedtailor, processes",
    "pfl": "pfl-research, processes",
    "pfl_threads": "pfl-research, threads",
    "flower": "Flower, simulation",
}
INTRODUCTION = """# Performance

How fast training is, how that was measured, and on what. The tables are written from the records in
[`benchmarks/results`](../benchmarks/results); the commands that make them are in
[`benchmarks/README.md`](../benchmarks/README.md). Times are of the machine that a record names: compare within a table.

## What makes it fast

* **One client per core.** `workers` trains as many clients at once as there are physical cores, each on one thread,
  the longest first. Frameworks that train one client after the other leave the cores to threads within a step,
  which are too short to be divided.
* **Memory as the processor wants it.** Images and filters lie channels last; pooling comes before an activation
  that is monotone, which is the same result from a quarter of the numbers; memory that a step frees is kept, not
  returned.
* **Little between the products.** A step of SGD is one pass over parameters, gradients and momentum. A client's images
  are normalized once per round, from resident 8-bit data; there is no data loader.
* **Small steps are recorded.** A perceptron, or a head on cached features, spends most of a step between its products.
  After 16 steps of one shape, its operations are recorded with the memory that they work on, as a CUDA graph does on a
  GPU, and from then on run from a list, without automatic differentiation or Python in between. A recording is used
  when it has given the same as the step itself, bit for bit, on three other batches. Steps run as they are on
  `reference`, where a model has more than 4 MiB, where the loss is a closure, looks at values, or uses operations
  that are not in a list of tested ones, and where convolutions are large.
* **Processes where steps are short.** Below a millisecond threads hold each other up; `processes` maps the same
  data into processes of their own. `engine.name = "auto"` times ten steps and chooses between the two, which give
  the same bits.
* **Those who do not train cost little.** What clients keep is in memory up to 1 GiB, and in files beyond.

The rivals in the tables are loops and libraries at their better setting, in the same run, in turn; a ratio is the
median of the ratios of the pairs. A load marked (!) says that other work shared the machine, or had just ended. No
time is of a GPU: none was there.
"""


def pages() -> dict[str, str]:
    """Return the text of the page by its path below docs."""
    parts = [INTRODUCTION, steps(), evaluation(), peers(), rounds(), scale()]
    return {"performance.md": "\n".join(part for part in parts if part)}


def load(pattern: str) -> list[dict[str, Any]]:
    """Return the records of a kind."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(pattern))]


def table(head: str, rows: list[list[Any]]) -> str:
    """Return a table in Markdown; its first line is ``head``."""
    lines = [head, "|".join(["", *["---"] * (head.count("|") - 1), ""])]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n"


def where(record: dict[str, Any]) -> str:
    """Say on what a record was measured."""
    about = {**record, **record["machine"]}
    processor = about.get("cpu") or about["processor"]
    cores = about.get("cores") or about["physical_cores"]
    return f"{processor}, {cores} cores, torch {about['torch']}"


def short(value: float) -> str:
    """Return a time with as many digits as say something."""
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def load_of(record: dict[str, Any]) -> str:
    """Return the load of the machine before a measurement: above 2, other work shared the two cores."""
    before = {**record, **record["machine"]}["load_before"]
    return f"{before:.1f}" + (" (!)" if before > 2 else "")


def steps() -> str:
    """Return the table of training steps."""
    rows = []
    records = load("train_step-*.json")
    for found in records:
        ours = found["ours"]
        speedup = found["speedup"]
        share = f"{ours['percent_of_sgemm_peak']:.0f} %"
        rows.append(
            [
                f"`{found['model']}`",
                f"`{found.get('engine', 'workers')}`",
                *(short(found[arm]["ms_per_step"]) for arm in ("ours", "ours_1", "ours_plain", "peer", "peer_1")),
                f"**{speedup['peer_better']:.2f}**",
                f"{speedup['peer_1_thread']:.2f}",
                f"{speedup['peer_tuned']:.2f}",
                share,
                f"{ours['percent_of_convolution_peak']:.0f} %",
                load_of(found),
            ]
        )
    head = (
        "| model | engine | ms a step | on one core | and nothing recorded | loop, default threads | loop, 1 thread "
        "| ratio to its better setting | to 1 thread | to a tuned loop | of the sgemm peak | of the convolution peak "
        "| load |"
    )
    text = (
        "## Training steps\n\nThe loop is what the tools in use do: a module per client, a DataLoader over pairs, "
        "torch's SGD. The tuned loop has what we set for speed outside a step, too, which none of those compared "
        "does: memory that is kept, convolutions channels last. Peaks of all cores are measured in the same run, by "
        "large matrix products and large convolutions; the latter are faster on some processors, so that more than "
        "100 % of the former is possible.\n"
    )
    return f"{text}\n{table(head, rows)}\nMeasured on: {where(records[0])}.\n"


def evaluation() -> str:
    """Return the table of evaluation."""
    records = load("evaluation-*.json")
    rows = [
        [
            f"`{found['model']}`",
            *(f"{found[arm]['examples_per_second']:,}" for arm in ("ours", "peer", "peer_1")),
            f"**{found['speedup']['peer_better']:.2f}**",
            f"{found['speedup']['peer_tuned']:.2f}",
            load_of(found),
        ]
        for found in records
    ]
    if not rows:
        return ""
    head = (
        "| model | examples a second | loop, default threads | loop, 1 thread | ratio to its better setting "
        "| to a tuned loop | load |"
    )
    return f"## Evaluation\n\n{table(head, rows)}\nMeasured on: {where(records[0])}.\n"


def peers() -> str:
    """Return the tables of other libraries."""
    parts = []
    for found in load("peers-*.json"):
        rows = [[NAMES[arm], short(one["ms_per_step"]), f"{one['ratio']:.2f}"] for arm, one in found["arms"].items()]
        head = "| | ms a step | times the first row |"
        title = f"`{found['model']}`, load {load_of(found)}"
        parts.append(f"{title}:\n\n{table(head, rows)}\nMeasured on: {where(found)}.\n")
    return "## Other libraries, whole rounds of FedAvg\n\n" + "\n".join(parts) if parts else ""


def rounds() -> str:
    """Return the tables of whole rounds."""
    parts = []
    for found in load("round-*-*.json"):
        rows = []
        for name, one in found["algorithms"].items():
            by_kind = [[of[kind] for of in one["seconds"].values()] for kind in ("train", "aggregate", "evaluate")]
            seconds = [" / ".join(f"{value:.2f}" for value in values) for values in by_kind]
            parts_of = one["one_client"]["train"]
            total = sum(parts_of.values())
            top = ", ".join(f"{100 * value / total:.0f} % {part}" for part, value in list(parts_of.items())[:3])
            rows.append([f"`{name}`", *seconds, f"{100 * one['outside_steps']:.1f} %", top])
        head = (
            "| algorithm | training, s | server, s | personalizing and scoring all, s | of a client's round outside "
            "training steps | largest parts of a client's round |"
        )
        engines = " / ".join(next(iter(found["algorithms"].values()))["seconds"])
        title = f"`{found['model']}`, Dir({found['alpha']:g}), engines {engines}"
        parts.append(f"{title}, load {load_of(found)}:\n\n{table(head, rows)}\nMeasured on: {where(found)}.\n")
    if not parts:
        return ""
    text = "## Whole rounds\n\n30 clients of 480 images on average, 5 epochs in batches of 50.\n\n"
    return text + "\n".join(parts)


def scale() -> str:
    """Return the table of many clients."""
    (found,) = load("scale.json") or [None]
    if found is None:
        return ""
    rows = [
        [
            f"`{one['algorithm']}`",
            f"{one['clients']:,}",
            f"{one['round_s']:.3f}",
            f"{one['setup_s']:.1f}",
            one["peak_mb"],
            one["anonymous_mb"],
        ]
        for one in found["results"]
    ]
    head = "| algorithm | clients | s a round | s before the first | largest memory, MB | of it not of files, MB |"
    text = f"## Many clients\n\n{found['cohort']} of them train in a round; load {load_of(found)}.\n"
    return f"{text}\n{table(head, rows)}\nMeasured on: {where(found)}.\n"
