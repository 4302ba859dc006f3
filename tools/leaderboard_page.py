"""The pages of the leaderboard, from its records.

Its figure is docs/leaderboard.png, which git keeps. To draw it again, run
``python -m benchmarks.leaderboard --figure docs/leaderboard.png``.
"""

import json
import statistics
from typing import Any

from benchmarks.leaderboard import RECORDS
from benchmarks.peers.pfllib import BENCHMARK, OURS, VARIANTS, record_name
from benchmarks.records import RESULTS
from fedtailor.experiment.leaderboard import read_board
from fedtailor.report.leaderboard_page import page_of, records_page_of

_RECORDS_PAGE = "leaderboard-records.md"
_BESIDE_PFLLIB = """## Beside PFLlib

PFLlib's own program (commit {commit}) and ours on the same split: 4,000 pictures of Fashion-MNIST
at 20 clients, label skew Dirichlet(0.1), a perceptron of 100 hidden units, {rounds} rounds of one
epoch with all clients, plain SGD (learning rate {lr}, batches of {batch}), the same inputs. Nothing
is tuned: the options are those that both have. Accuracy is that of the models after the last round
over all test examples together, in percent: the mean over three seeds (PFLlib: repetitions) ± the
standard error, and the range.

{table}

* **Network, by experiment.** For FedAvg and FedRep, PFLlib takes the last layer of its network out
  as the head. Its perceptron ends with a log-softmax, which then stands before the head, over the
  hidden units. Our program with such a network is the column "{divided}".
* **Last batch, by experiment.** PFLlib leaves out the last batch of an epoch if it is smaller, so a
  client with less than one batch never trains. "{batches}" does the same; "{epochs}" is our
  default.
* **Averaging, by experiment.** PFLlib counts all test examples alike. The leaderboard takes the
  mean over clients, which is the last column.
* **Evaluation point.** Both evaluate after the last aggregation. PFLlib's log prints the highest
  test accuracy of all rounds; the table has the last one.
* **Initial model.** Uniform within one over the root of the inputs, in both; the numbers drawn
  differ. PFLlib's repetitions are no seeds: the second and the third have the same accuracy before
  training, for every method, so they seem to begin with one model. Its spread is of two models.
* **Open.** PFLlib's APFL moves the mixing weight on every batch and replaces the own model by the
  mixture after every round; ours follows the paper. No experiment here divides that. A row with "-"
  was not measured yet.

`python -m benchmarks.peers.pfllib` measures both; its records are
`benchmarks/results/{benchmark}.jsonl`."""


def pages() -> dict[str, str]:
    """Return the texts of the pages by their paths below docs."""
    records = read_board(RECORDS)
    page = page_of(records, "../leaderboard.png", _RECORDS_PAGE, more=_beside_others())
    return {
        "results/leaderboard.md": page,
        f"results/{_RECORDS_PAGE}": records_page_of(records),
    }


def _beside_others() -> list[str]:
    """Return a section for every program that was measured on the same split."""
    path = RESULTS / f"{BENCHMARK}.jsonl"
    if not path.exists():
        return []

    lines = path.read_text().splitlines()
    records = {record["name"]: record for record in map(json.loads, lines)}
    batches, epochs, divided = VARIANTS
    columns = ["method", "PFLlib", *(f"ours, {variant}" for variant in VARIANTS)]
    columns.append(f"ours, {epochs}, mean over clients")
    rows = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    for method in OURS:
        theirs = records.get(f"pfllib-{method}")
        ours = {variant: records.get(record_name(method, variant)) for variant in VARIANTS}
        cells = [method, _spread(theirs, "pooled")]
        cells += [_spread(record, "pooled") for record in ours.values()]
        cells.append(_spread(ours[epochs], "mean"))
        rows.append("| " + " | ".join(cells) + " |")

    any_of_theirs = next(record for name, record in records.items() if name.startswith("pfllib"))
    text = _BESIDE_PFLLIB.format(
        commit=any_of_theirs["commit"][:8],
        rounds=any_of_theirs["rounds"],
        lr=any_of_theirs["lr"],
        batch=any_of_theirs["batch"],
        table="\n".join(rows),
        batches=batches,
        epochs=epochs,
        divided=divided,
        benchmark=BENCHMARK,
    )
    return [text]


def _spread(record: dict[str, Any] | None, averaging: str) -> str:
    """Return mean, standard error and range over seeds in percent."""
    if record is None:
        return "-"

    values = [100 * value for value in record[averaging]]
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.fmean(values):.1f} ± {error:.1f} ({min(values):.1f} to {max(values):.1f})"
