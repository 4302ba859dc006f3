"""Tables of verdicts, and where they are: comparisons, their files, and pages."""

import csv
import io
import json

import numpy as np
import pytest

import fedtailor
from fedtailor.cli.main import main
from fedtailor.report import compare, read_methods
from fedtailor.report.latex import to_latex
from fedtailor.report.page.build import build_sections
from fedtailor.report.tables import to_markdown
from fedtailor.report.worth_it import choose_shown, sites_csv, worth_it_tables


def site(number, difference=0.0, verdict="no clear difference", **changes):
    """Return the record of a site."""
    scores = {"accuracy": 0.8, "balanced_accuracy": 0.75, "auroc": None}
    return {
        "site": f"=site {number}",
        "client": number,
        "examples": 1234,
        "groups": None,
        "majority": 0.6,
        "own": {"logistic_regression": 2, "random_forest": 1},
        "scores": {"own": scores, "global": scores, "personalized": scores},
        "difference": {"difference": difference, "low": difference - 0.1, "high": 0.1},
        "other_differences": {"balanced_accuracy": None, "auroc": None},
        "p_value": 0.5,
        "corrected_p_value": 1.0,
        "verdict": verdict,
        **changes,
    }


def record(sites):
    verdicts = dict.fromkeys(["better", "no clear difference", "worse"], 0)
    for one in sites:
        verdicts[one["verdict"]] += 1
    return {"verdicts": verdicts, "measure": "accuracy", "rule": "The rule.", "sites": sites}


def test_few_sites_have_a_row_each():
    verdicts = {"ditto": record([site(0, 0.1, "better"), site(1)]), "fedper": record([site(0)])}
    first, methods, scores = worth_it_tables(verdicts, "ditto")
    assert len(first.rows) == len(methods.rows) == len(scores.rows) == 2
    assert methods.rows[0] == ["=site 0", "better, +10.0", "unclear, 0.0"]
    assert methods.rows[1] == ["=site 1", "unclear, 0.0", "-"]
    row = dict(zip(first.columns, first.rows[0], strict=True))
    assert row["verdict"] == "better" and row["test examples"] == "1,234"
    assert row["difference (95 % interval)"] == "+10.0 (0.0 to +10.0)"
    assert row["best own model"] == "logistic regression (2 of 3)"
    assert row["balanced own / pers."] == "75.0 / 75.0" and row["AUROC own / pers."] == "- / -"
    assert "ditto: worth it for 1 of 2 sites" in first.conclusion
    assert "fedper: no clear difference from" in first.conclusion
    assert "The rule." in first.below and "groups" not in first.columns

    # A global model that is the personalized one needs no columns; patients have one.
    assert not any("global" in column for column in scores.columns)
    grouped, _ = worth_it_tables({"ditto": record([site(0, groups=7)])}, "ditto")
    assert "groups" in grouped.columns and "7" in grouped.rows[0]


def test_rows_that_seem_to_contradict_themselves_are_explained():
    rows = [site(0), site(1, majority=0.9), site(2, 0.2, corrected_p_value=0.08)]
    first = worth_it_tables({"ditto": record(rows)}, "ditto")[0]
    assert "=site 2 (corrected p 0.080)" in first.below
    assert "=site 1 (90.0 % of one class: 75.0 and 75.0 %)" in first.conclusion
    assert "=site 0" not in first.below + first.conclusion

    # Alone there is no correction, and other measures have no majority that looks good.
    alone = {**record([rows[2]]), "measure": "auroc"}
    alone["sites"][0]["other_differences"] = {
        "accuracy": None,
        "balanced_accuracy": rows[2]["difference"],
    }
    first, others = worth_it_tables({"ditto": alone}, "ditto")
    assert "leaves out 0" not in first.below and "=site" not in first.conclusion
    row = dict(zip(first.columns, first.rows[0], strict=True))
    assert row["difference (95 % interval)"] == "+0.200 (+0.100 to +0.100)"
    assert "+20.0 (+10.0 to +10.0)" in others.rows[0]


def test_many_sites_have_a_distribution_and_the_worst_ten():
    sites = [site(number, number / 100) for number in range(31)]
    distribution, worst = worth_it_tables({"ditto": record(sites)}, "ditto")
    assert [row[:2] for row in distribution.rows] == [
        ["all", "31"],
        ["better", "0"],
        ["no clear difference", "31"],
        ["worse", "0"],
    ]
    assert distribution.rows[0][2:] == ["+3.0", "+7.5", "+15.0", "+22.5", "+27.0"]
    assert [row[0] for row in worst.rows] == [f"=site {number}" for number in range(10)]

    rows = list(csv.DictReader(io.StringIO(sites_csv({"ditto": record(sites)}))))
    assert len(rows) == 31 and float(rows[30]["difference"]) == 0.3
    assert rows[0]["site"] == "'=site 0", "no formula of a spreadsheet"
    assert rows[0]["own_model"] == "logistic_regression or random_forest"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A comparison on the tables of two sites."""
    folder = tmp_path_factory.mktemp("compared")
    (folder / "data").mkdir()
    generator = np.random.default_rng(0)
    for name in ("Oslo", "Porto"):
        ages = generator.integers(20, 90, 60)
        rows = [f"{age},{age % 7},{'ill' if age > 50 else 'well'}" for age in ages]
        text = "\n".join(["age,weight,label", *rows])
        (folder / "data" / f"{name}.csv").write_text(text)

    command = ["compare", "--data", str(folder / "data"), "-a", "fedavg_ft", "-a", "local"]
    command += ["-a", "pfedfda", "--seeds", "0,1", "--rounds", "1", "--out", str(folder / "out")]
    command += ["--set", "evaluation.baselines='majority,logistic_regression'"]
    assert not main([*command, "--set", "training.epochs=1"])
    return folder / "out"


def test_a_comparison_shows_the_sites_of_a_method_that_trains_together(folder):
    methods = read_methods([folder])
    comparison = compare(methods)
    assert list(comparison.worth_it) == ["fedavg_ft", "pfedfda"]
    assert comparison.judged == "fedavg_ft", "named first: there are no validation examples"
    majority = methods[0].finished[0].result["majority_accuracy"]
    other = methods[0].finished[1].result["majority_accuracy"]
    assert f"{50 * (majority + other):.1f} %" in comparison.notes[0]
    assert (
        "the first method"
        in worth_it_tables(comparison.worth_it, comparison.judged, comparison.why_judged)[
            0
        ].conclusion
    )

    sites = comparison.worth_it["pfedfda"]["sites"]
    assert [one["site"] for one in sites] == ["Oslo", "Porto"]
    for one in sites:
        gap = one["scores"]["personalized"]["accuracy"] - one["scores"]["own"]["accuracy"]
        assert one["difference"]["difference"] == pytest.approx(gap, abs=1e-4)

    # The best on validation examples, where all have them.
    for run in methods[2].runs.values():
        run.result["metrics"]["validation"] = {"accuracy": {"mean": 0.9}}
    assert choose_shown([methods[0], methods[2]])[0] == "fedavg_ft"
    for run in methods[0].runs.values():
        run.result["metrics"]["validation"] = {"accuracy": {"mean": 0.8}}
    assert choose_shown([methods[0], methods[2]])[0] == "pfedfda"


def test_files_and_pages_hold_the_verdicts(folder):
    methods = read_methods([folder])
    comparison = compare(methods)
    rows = list(csv.DictReader(io.StringIO((folder / "sites.csv").read_text())))
    assert [(row["method"], row["site"]) for row in rows] == [
        ("fedavg_ft", "Oslo"),
        ("fedavg_ft", "Porto"),
        ("pfedfda", "Oslo"),
        ("pfedfda", "Porto"),
    ]
    assert json.loads((folder / "table.json").read_text())["judged"] == "fedavg_ft"
    for text in (to_markdown(comparison), to_latex(comparison)):
        assert "Porto" in text and "worth it for" in text

    section = build_sections(methods)[0]
    assert section.name == "worth-it" and len(section.notes) == 3
    assert len(section.tables) == 3 and len(section.figures[0].table.rows) == 2

    # Other metrics and points have other questions.
    assert not compare(methods, metric="loss").worth_it
    by_area = compare(methods, metric="auroc").worth_it["fedavg_ft"]
    assert by_area["measure"] == "auroc" and "in AUROC" in by_area["rule"]


def test_the_result_of_a_run_has_the_verdicts_of_its_seeds(folder, capsys):
    path = read_methods([folder])[2].path
    result = fedtailor.load(path).result
    (seeds,) = result["worth_it"]["sites"][0]["own"].values()
    assert seeds == 2, "a baseline, in both seeds"

    sections = build_sections(read_methods([path / "seed-0"]))
    assert sections[0].name == "worth-it" and len(sections[0].notes) == 1

    main(["resume", str(path)])
    assert "worth it for" in capsys.readouterr().out
