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
RENAMED = {"mean_surprise": "mean_negative_log_likelihood"}
"""Names of functions in old records, and what they are called now."""
INTRODUCTION = """# Performance

This page shows how fast training is, how it was measured, and on what machine. Its tables come from the records in
[`benchmarks/results`](../benchmarks/results); [`benchmarks/README.md`](../benchmarks/README.md) lists the commands that
write them. Times depend on the machine that a record names: compare numbers within a table only.

## What makes it fast

* **One client per core.** `workers` trains as many clients at once as there are physical cores, each on one thread,
  the longest first. Frameworks that train one client after another can use several cores only within a step, and
  steps are too short for that.
* **A memory layout that suits the processor.** Images and filters are stored channels last. Pooling comes before a
  monotone activation, which gives the same result from a quarter of the numbers. Memory that a step frees is kept
  for the next one.
* **Little work between the matrix products.** A step of SGD passes over parameters, gradients and momentum once. A
  client's images are normalized once per round, from 8-bit data in memory; there is no data loader.
* **Small steps are recorded.** In a perceptron, or in a head on cached features, most of the time of a step passes
  between the matrix products. After 16 steps of one shape, the operations are recorded together with their memory, as
  a CUDA graph does on a GPU. From then on they run from a list, without automatic differentiation or Python in between.
  A recording is used only if it gives the same bits as the step itself on three other batches. Steps are not recorded
  on `reference`, for models above 4 MiB, for large convolutions, and for losses that are closures, look at values, or
  use operations that are not in a list of tested ones.
* **Processes for short steps.** Below a millisecond, threads slow each other down; `processes` maps the same data into
  separate processes. `engine.name = "auto"` times ten steps and chooses one of the two; both give the same bits.
* **Clients that do not train cost little.** Client states stay in memory up to 1 GiB, and in files beyond that.

The other programs in the tables are loops and libraries at their better setting. They ran in turn with ours in the same
run; a ratio is the median of the ratios of all pairs. A load marked (!) means that other work used the machine, or had
just ended. There are no GPU times, because no GPU was available.
"""


def pages() -> dict[str, str]:
    """Return the text of the page by its path below docs."""
    parts = [INTRODUCTION, steps(), parts_of_a_step(), evaluation(), peers(), rounds(), scale()]
    return {"performance.md": "\n".join(part for part in parts if part)}


def load(pattern: str) -> list[dict[str, Any]]:
    """Return the records of a kind."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(pattern))]


def table(head: str, rows: list[list[Any]]) -> str:
    """Return a table in Markdown; its first line is ``head``."""
    lines = [head, "|".join(["", *["---"] * (head.count("|") - 1), ""])]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n"


def where(record: dict[str, Any]) -> str:
    """Return the machine of a record, in words."""
    about = {**record, **record["machine"]}
    processor = about.get("cpu") or about["processor"]
    cores = about.get("cores") or about["physical_cores"]
    return f"{processor}, {cores} cores, torch {about['torch']}"


def short(value: float) -> str:
    """Return a time with two decimals, or with three below 1."""
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def load_of(record: dict[str, Any]) -> str:
    """Return the load of the machine before a measurement: above 2, other work shared the two
    cores.
    """
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
                *(
                    short(found[arm]["ms_per_step"])
                    for arm in ("ours", "ours_1", "ours_plain", "peer", "peer_1")
                ),
                f"**{speedup['peer_better']:.2f}**",
                f"{speedup['peer_1_thread']:.2f}",
                f"{speedup['peer_tuned']:.2f}",
                share,
                f"{ours['percent_of_convolution_peak']:.0f} %",
                load_of(found),
            ]
        )
    head = (
        "| model | engine | ms per step | on one core | on one core, not recorded | loop, default threads "
        "| loop, 1 thread | ratio to its better setting | to 1 thread | to the tuned loop | % of the sgemm peak "
        "| % of the convolution peak | load |"
    )
    text = (
        "## Training steps\n\nThe loop does what common tools do: one module per client, a DataLoader over pairs, and "
        "the SGD of torch. The tuned loop also has our settings outside a step, which no compared tool has: it keeps "
        "freed memory, and its convolutions are channels last. The same run measures the peak speed of all cores, "
        "with large matrix products and large convolutions. On some processors convolutions are faster, so a "
        "share can exceed 100 % of the peak of matrix products.\n"
    )
    return f"{text}\n{table(head, rows)}\nMeasured on: {where(records[0])}.\n"


def parts_of_a_step() -> str:
    """Return the tables of where the time of a step goes."""
    sections = []
    for found in load("parts-*.json"):
        whole = found["ms_per_step"]
        arithmetic = found["ms_of_the_arithmetic_at_the_peak"]
        of_products = [
            ms for kind, ms in found["ms"].items() if kind.startswith(("convolution", "linear"))
        ]
        below = sum(of_products) - arithmetic
        rows = [[kind, short(ms), f"{100 * ms / whole:.1f} %"] for kind, ms in found["ms"].items()]
        text = (
            f"`{found['model']}` on one core, {short(whole)} ms of processor time per step, load {load_of(found)}. At "
            f"the convolution peak of {found['convolution_peak_of_one_core']:.0f} GFLOP/s its arithmetic would take "
            f"{short(arithmetic)} ms, {100 * arithmetic / whole:.0f} % of the step. Convolutions and linear layers "
            f"take {short(below)} ms more than that ({100 * below / whole:.0f} %): few channels do not fill the "
            f"vectors, and {short(found['ms_of_reorders'])} ms of it go into other layouts of filters. The rest is "
            "everything else in the table."
        )
        head = "| part | ms per step | share |"
        sections.append(f"{text}\n\n{table(head, rows)}\nMeasured on: {where(found)}.\n")
    return "## Where the time of a step goes\n\n" + "\n".join(sections) if sections else ""


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
        "| model | examples per second | loop, default threads | loop, 1 thread | ratio to its better setting "
        "| to the tuned loop | load |"
    )
    return f"## Evaluation\n\n{table(head, rows)}\nMeasured on: {where(records[0])}.\n"


def peers() -> str:
    """Return the tables of other libraries."""
    parts = []
    for found in load("peers-*.json"):
        rows = [
            [NAMES[arm], short(one["ms_per_step"]), f"{one['ratio']:.2f}"]
            for arm, one in found["arms"].items()
        ]
        head = "| | ms per step | relative to the first row |"
        title = f"`{found['model']}`, load {load_of(found)}"
        parts.append(f"{title}:\n\n{table(head, rows)}\nMeasured on: {where(found)}.\n")
    return "## Other libraries, whole rounds of FedAvg\n\n" + "\n".join(parts) if parts else ""


def rounds() -> str:
    """Return the tables of whole rounds."""
    parts = []
    for found in load("round-*-*.json"):
        rows = []
        for name, one in found["algorithms"].items():
            by_kind = [
                [of[kind] for of in one["seconds"].values()]
                for kind in ("train", "aggregate", "evaluate")
            ]
            seconds = [" / ".join(f"{value:.2f}" for value in values) for values in by_kind]
            parts_of = one["one_client"]["train"]
            total = sum(parts_of.values())
            top = ", ".join(
                f"{100 * value / total:.0f} % {RENAMED.get(part, part)}"
                for part, value in list(parts_of.items())[:3]
            )
            rows.append([f"`{name}`", *seconds, f"{100 * one['outside_steps']:.1f} %", top])
        head = (
            "| algorithm | training, s | server, s | personalizing and scoring all clients, s | share of a client's "
            "round outside training steps | largest parts of a client's round |"
        )
        engines = " / ".join(next(iter(found["algorithms"].values()))["seconds"])
        title = f"`{found['model']}`, Dir({found['alpha']:g}), engines {engines}"
        parts.append(
            f"{title}, load {load_of(found)}:\n\n{table(head, rows)}\nMeasured on: {where(found)}.\n"
        )
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
    head = (
        "| algorithm | clients | s per round | s before the first round | peak memory, MB "
        "| of it not mapped from files, MB |"
    )
    text = f"## Many clients\n\n{found['cohort']} clients train in each round; load {load_of(found)}.\n"
    return f"{text}\n{table(head, rows)}\nMeasured on: {where(found)}.\n"
