"""What noise promises is said in the same words wherever a run is shown, and nowhere without
noise."""

import json
import math

import pytest

from fedtailor.cli.main import main
from fedtailor.core.errors import DataError
from fedtailor.privacy.claims import budget_of, claim_of, claims_of, of_card, promises_of
from fedtailor.report import compare, read_methods
from written_runs import write_run

SMALL = ["-a", "fedavg", "--clients", "4", "--rounds", "2", "--partition", "iid"]
SMALL += ["--set", "data.fraction=0.1", "--set", "evaluation.every=0"]
CLIENTS = {"unit": "client", "delta": 1e-3, "epsilon": 3.999, "epsilon_known_cohort": 6.0}
EXAMPLES = {
    "unit": "example",
    "bounds": "gradients",
    "noise_from": "sites",
    "delta": 1e-5,
    "epsilon": 2.0,
}
SCORES = {"personalized": {0: 0.5, 1: 0.75}}


def test_a_claim_names_epsilon_delta_unit_and_what_it_does_not_cover():
    claim = claim_of(CLIENTS)
    assert claim.startswith("epsilon 4.00 (delta 0.001) per client, for whoever sees the global")
    assert "6.00 for whoever also knows who took part" in claim
    for words in (
        "scores",
        "training metrics",
        "numbers of examples",
        "names of classes and columns",
        "medians, means and deviations of inputs",
        "own model files",
        "the seed",
    ):
        assert words in claim.partition("not covered: ")[2]

    for bounds in ("gradients", "features"):
        claim = claim_of({**EXAMPLES, "bounds": bounds})
        assert "per example, for whoever sees uploads or the global model" in claim
        assert "several examples of one person" in claim.partition("not covered: ")[2]

    of_sums = {**EXAMPLES, "bounds": "features", "epsilon_of_sums": 0.5}
    assert "0.50 for whoever sees sums only" in claim_of(of_sums)
    shares = {**EXAMPLES, "noise_from": "server", "fewest": 7, "shares": 4}
    assert "sums over at least 7 clients" in claim_of(shares)
    assert "if 4 clients of every sum keep their noise" in claim_of(shares)


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [(2.0, "2.00"), (2.0001, "2.01"), (math.inf, "without a bound"), (None, "without a bound")],
)
def test_an_epsilon_is_never_rounded_down(epsilon, words):
    assert (
        budget_of({**EXAMPLES, "epsilon": epsilon}) == f"epsilon {words} (delta 1e-05) per example"
    )


def test_of_several_runs_that_counts_which_tells_most():
    (one, two) = ({"privacy": CLIENTS}, {"privacy": {**CLIENTS, "epsilon_known_cohort": 7.0}})
    promises = promises_of([one, two])
    assert promises["privacy"]["epsilon_known_cohort"] == 7.0
    assert "per client in each of 2 runs (they add up)" in promises["privacy"]["claim"]
    assert promises_of([promises, one])["privacy"]["runs"] == 3

    unbounded = {"privacy": {**CLIENTS, "epsilon": None}}
    assert promises_of([one, unbounded])["privacy"]["epsilon"] is None


def test_runs_are_those_of_all_seeds_and_folds():
    folds = promises_of([{"privacy": CLIENTS}, {"privacy": CLIENTS}])
    seeds = promises_of([folds, folds])
    assert seeds["privacy"]["runs"] == 4
    assert "per client in each of 4 runs" in seeds["privacy"]["claim"]


def test_without_noise_nothing_is_claimed():
    assert claims_of({}) == [] and of_card({}) == {} and promises_of([{}, {}]) == {}


def test_different_promises_are_a_warning_and_equal_ones_a_note(tmp_path):
    runs = []
    for name, promises in (("a", {"privacy": CLIENTS}), ("b", {"privacy": CLIENTS}), ("c", {})):
        path = write_run(tmp_path / name, SCORES, algorithm=f"method_{name}")
        result = json.loads((path / "result.json").read_text())
        (path / "result.json").write_text(json.dumps({**result, **promises}))
        runs.append(path)

    equal = compare(read_methods(runs[:2]))
    assert not any("noise promises" in warning for warning in equal.warnings)
    assert f"method_a, method_b: {claim_of(CLIENTS)}" in equal.notes

    text = "\n".join(compare(read_methods(runs[1:])).warnings)
    budget = "epsilon 4.00 (delta 0.001) per client"
    assert f"differ in what noise promises: {budget} (method_b); nothing (method_c)." in text


@pytest.mark.parametrize("record", [3, {"epsilon": "x"}, {**CLIENTS, "delta": []}])
def test_a_damaged_record_is_named(tmp_path, record):
    good = write_run(tmp_path / "good", SCORES)
    bad = write_run(tmp_path / "bad", SCORES, algorithm="ditto")
    result = json.loads((bad / "result.json").read_text())
    (bad / "result.json").write_text(json.dumps({**result, "privacy": record}))
    with pytest.raises(DataError, match="is damaged"):
        compare(read_methods([good, bad]))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


def test_all_that_shows_a_run_says_the_same(folder, capsys):
    noise = ["--set", "privacy.unit=client", "--set", "privacy.noise=2.0"]
    new = ["--set", "data.new_clients=1"]
    assert main(["run", *SMALL, *noise, *new, "--out", "one"]) == 0
    result = json.loads((folder / "one" / "result.json").read_text())
    claim = claim_of(result["privacy"])
    assert claim in capsys.readouterr().err.replace("\n", " ").replace("  ", " ")
    assert result["privacy"]["claim"] == claim

    # Cards of clients, also of one that never trained, and of an exported model.
    for client in ("0", "3"):
        card = json.loads((folder / "one" / "models" / f"{client}.json").read_text())
        assert card["privacy"]["claim"] == claim
        assert card["privacy"]["epsilon"] == result["privacy"]["epsilon"]

    assert main(["export", "one", "--client", "0", "--format", "safetensors", "--out", "ex"]) == 0
    (exported,) = (folder / "ex").glob("*.json")
    assert json.loads(exported.read_text())["privacy"]["claim"] == claim

    assert main(["report", "one", "--out", "page.html"]) == 0
    page = (folder / "page.html").read_text().replace("&#39;", "'")
    assert f"<p>fedavg: {claim}</p>" in page and "Epsilon by round" in page

    # Of the run, and of the same run before it is made.
    capsys.readouterr()
    assert main(["what-leaves", "one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["claims"] == [claim]
    rounds = ["--set", "federation.rounds=2"]
    assert main(["what-leaves", "fedavg", *noise, *rounds, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["claims"] == [f"After all rounds: {claim}"]


def test_a_run_without_noise_says_nothing_of_it(folder, capsys):
    assert main(["run", *SMALL, "--out", "one"]) == 0
    assert main(["report", "one", "--out", "page.html"]) == 0
    card = json.loads((folder / "one" / "models" / "0.json").read_text())
    assert "privacy" not in card
    assert (
        "epsilon"
        not in (folder / "page.html")
        .read_text()
        .partition("<section id=")[2]
        .partition('<section id="configuration"')[0]
    )


def test_folds_are_several_runs_on_the_same_data(folder):
    noise = ["--set", "privacy.unit=example", "--set", "privacy.noise=2.0"]
    noise += ["--set", "privacy.noise_from=sites"]
    assert main(["run", *SMALL, *noise, "--seeds", "0", "--folds", "2", "--out", "one"]) == 0
    result = json.loads((folder / "one" / "result.json").read_text())
    assert result["privacy"]["runs"] == 2
    assert "in each of 2 runs" in result["privacy"]["claim"]
