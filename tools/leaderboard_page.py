"""The pages of the leaderboard, from its records.

Git keeps the figure: ``python -m tools.leaderboard_page`` draws it again.
"""

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.peers.accuracy import BENCHMARK, OURS, VARIANTS, record_name
from benchmarks.records import RESULTS, read_records
from fedtailor.core.text import markdown_table
from fedtailor.experiment.leaderboard import read_board
from fedtailor.report.charts import picture
from fedtailor.report.leaderboard_page import figure_of, page_of, records_page_of

_RECORDS = RESULTS / "leaderboard.jsonl"
_FIGURE = Path(__file__).parents[1] / "docs/leaderboard.png"
_RECORDS_PAGE = "leaderboard-records.md"
_HOW = "[How the leaderboard is measured](../reference/leaderboard.md), with what each number is."
_BESIDE_OTHERS = """## Beside PFLlib and fluke

The programs of PFLlib (commit {commit}) and fluke ({version}) and ours on the same split: 4,000
pictures of Fashion-MNIST at 20 clients, label skew Dirichlet(0.1), a perceptron of 100 hidden
units, {rounds} rounds of one epoch with all clients, plain SGD (learning rate {lr}, batches of
{batch}), the same inputs. Nothing is tuned: the options are those that all have. Accuracy is that
of the models after the last round over all test examples together, in percent: the mean over three
seeds (PFLlib: repetitions) ± the standard error, and the range.

{table}

* **Network, by experiment.** For FedAvg and FedRep, PFLlib takes the last layer of its network out
  as the head. Its perceptron ends with a log-softmax, which then stands before the head, over the
  hidden units. Our program with such a network is the column "{divided}".
* **Last batch, by experiment.** PFLlib leaves out the last batch of an epoch if it is smaller, so a
  client with less than one batch never trains. "{batches}" does the same; "{epochs}" is our
  default, and what fluke does.
* **Averaging, by experiment.** PFLlib counts all test examples alike. The leaderboard takes the
  mean over clients, which is the last column.
* **Evaluation point.** All are evaluated after the last aggregation. PFLlib's log prints the
  highest test accuracy of all rounds; the table has the last one. fluke reports the mean over
  clients; the table counts its predictions over all test examples.
* **Weights.** fluke weighs all clients alike unless its option `weighted` is set; here it is.
* **Initial model.** Uniform within one over the root of the inputs, in all; the numbers drawn
  differ. PFLlib's repetitions are no seeds: the second and the third have the same accuracy before
  training, for every method, so they seem to begin with one model. Its spread is of two models.
* **APFL, read in its code.** fluke takes the gradient of the mixture with respect to a copy, so the
  step of the own model has no gradient: the own model changes only when the mixture replaces it
  after a round. PFLlib moves the mixing weight on every batch and replaces the own model by the
  mixture after every round. Ours follows the paper. No experiment here divides that.
* **What remains**, as ours minus theirs in points. From PFLlib: {whole_batches} in Ditto and APFL,
  with whole batches; {divided_network} in FedAvg and FedRep, with its network. From fluke:
  {whole_epochs} in all four methods, with whole epochs. APFL's reason is read, not tested; for the
  others we know none.

`python -m benchmarks.peers.accuracy` measures all; its records are
`benchmarks/results/{benchmark}.jsonl`."""


def pages() -> dict[str, str]:
    """Return the texts of the pages by their paths below docs."""
    records = read_board(_RECORDS)
    page = page_of(records, "../leaderboard.png", _RECORDS_PAGE, more=[*_beside_others(), _HOW])
    return {
        "results/leaderboard.md": page,
        f"results/{_RECORDS_PAGE}": records_page_of(records),
    }


def _beside_others() -> list[str]:
    """Return a section on the programs that were measured on the same split."""
    records = read_records(BENCHMARK)
    if not records:
        return []

    batches, epochs, divided = VARIANTS
    columns = ["method", "PFLlib", "fluke", *(f"ours, {variant}" for variant in VARIANTS)]
    columns.append(f"ours, {epochs}, mean over clients")
    rows = []
    for method in OURS:
        ours = {variant: records.get(record_name(method, variant)) for variant in VARIANTS}
        theirs = [records.get(f"{program}-{method}") for program in ("pfllib", "fluke")]
        in_columns = [*theirs, *ours.values()]
        cells = [method, *(_spread(record, "pooled") for record in in_columns)]
        rows.append([*cells, _spread(ours[epochs], "mean")])

    one_of_pfllib = records["pfllib-fedavg"]
    text = _BESIDE_OTHERS.format(
        commit=one_of_pfllib["commit"][:8],
        version=records["fluke-fedavg"]["version"],
        rounds=one_of_pfllib["rounds"],
        lr=one_of_pfllib["lr"],
        batch=one_of_pfllib["batch"],
        table=markdown_table(columns, rows, of_numbers=range(1, len(columns))),
        batches=batches,
        epochs=epochs,
        divided=divided,
        benchmark=BENCHMARK,
        whole_batches=_gaps(records, "pfllib", batches, ("ditto", "apfl")),
        divided_network=_gaps(records, "pfllib", divided, ("fedavg", "fedrep")),
        whole_epochs=_gaps(records, "fluke", epochs, OURS),
    )
    return [text]


def _gaps(
    records: dict[str, dict[str, Any]], program: str, variant: str, methods: Iterable[str]
) -> str:
    """Return the range of our means minus a program's, in points; "-" if none was measured."""
    gaps = []
    for method in methods:
        ours = records.get(record_name(method, variant))
        theirs = records.get(f"{program}-{method}")
        if ours and theirs:
            gap = statistics.fmean(ours["pooled"]) - statistics.fmean(theirs["pooled"])
            gaps.append(100 * gap)

    return f"{min(gaps):+.1f} to {max(gaps):+.1f}" if gaps else "-"


def _spread(record: dict[str, Any] | None, averaging: str) -> str:
    """Return mean, standard error and range over seeds in percent; "-" if it was not measured."""
    if record is None:
        return "-"

    values = [100 * value for value in record[averaging]]
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.fmean(values):.1f} ± {error:.1f} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    _FIGURE.write_bytes(picture(figure_of(read_board(_RECORDS)), "png"))
