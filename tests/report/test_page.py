"""The page of a report: what it holds, that it is self-contained and inert, and that it reads any
records."""

import base64
import hashlib
import html
import html.parser
import random
import re

import numpy as np
import pytest

from faults import mutations
from fedtailor.core.errors import FedtailorError
from fedtailor.core.scores import BINS
from fedtailor.report.charts import page_svg
from fedtailor.report.comparison import compare
from fedtailor.report.figures import reliability
from fedtailor.report.methods import read_methods
from fedtailor.report.page.build import build_page, build_sections
from fedtailor.report.page.facts import MOST_EVENTS
from report.made_runs import CLASSES, write_run, write_seeds

HOSTILE = '</script><img src=x onerror="alert(1)">\x1b[31m\u202e\x00=1+1'


class Reader(html.parser.HTMLParser):
    """Collects the elements of a page, its text, and whatever it would load."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.texts = []
        self.loads = []
        self.handlers = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "action", "data", "poster", "srcset") and not str(
                value
            ).startswith("#"):
                self.loads.append(value)
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_data(self, data):
        self.texts.append(data)


def sections_of(*paths):
    return {section.name: section for section in build_sections(read_methods(paths))}


def figures_of(*paths):
    return figures_in(sections_of(*paths))


def figures_in(sections):
    return {figure.name: figure for section in sections.values() for figure in section.figures}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """The sections of a comparison of three methods."""
    place = tmp_path_factory.mktemp("comparison")
    names = [f"class {number}" for number in range(CLASSES)]
    folders = []
    for algorithm in ("pfedfda", "fedavg_ft", "local"):
        folders.append(write_seeds(place / algorithm, algorithm, (0, 1), class_names=names))
    return sections_of(*folders)


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The figures of a run without anything special."""
    return figures_of(write_run(tmp_path_factory.mktemp("usual") / "run"))


def test_a_comparison_has_its_figures_and_tables(comparison):
    sections = comparison
    assert [figure.name for section in sections.values() for figure in section.figures] == [
        "curves-personalized",
        "curves-global",
        "accuracy-by-client",
        "gain-against-local",
        "gain-against-fedavg",
        "accuracy-by-size",
        "partition",
        "reliability",
        "seconds",
        "bytes",
    ]
    titles = [table.title.partition(":")[0] for table in sections["comparison"].tables]
    assert "Differences from pfedfda over seeds" in titles and len(titles) == 4
    partition = sections["clients"].figures[-1]
    assert partition.table.columns[2:] == [f"class {number}" for number in range(CLASSES)]


def test_hostile_names_are_inert_and_a_page_loads_nothing(tmp_path):
    run = write_run(
        tmp_path / "<b>run",
        HOSTILE.replace("\x00", ""),
        client_names=[f"{HOSTILE}{number}" for number in range(4)],
        class_names=[HOSTILE] * CLASSES,
        dataset=HOSTILE.replace("\x00", ""),
        points=("personalized",),
        condition=f"{HOSTILE}-3",
        diagnostics={HOSTILE: float, "beta_means": float},
        events=[{"kind": HOSTILE, "round": 1, "client": 0, "reason": HOSTILE}],
    )
    page = build_page(read_methods([run]))
    read = Reader(page.html)
    charts = sum(len(figure.panels) for figure in page.figures)
    assert read.tags.count("svg") == charts and read.tags.count("script") == charts + 2
    assert read.tags.count("table") >= len(page.figures) + 3
    assert not {"img", "b"} & set(read.tags) and "onerror" in " ".join(read.texts)
    ours = re.sub(r"<script>.*?</script>", "", page.html, flags=re.DOTALL)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", ours)
    page.html.encode()
    for figure in page.figures:
        for line in figure.table.to_csv().splitlines():
            assert not line.startswith(("=", "@", "\t"))

    # Nothing is loaded, and only the two scripts run whose digests the policy names.
    assert read.loads == [] and read.handlers == []
    assert not {"link", "img", "iframe", "object"} & set(read.tags)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page.html)
    policy = html.unescape(policy)
    scripts = re.findall(r"<script>(.*?)</script>", page.html, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert len(digests) == 2 and all(f"'sha256-{one}'" in policy for one in digests)
    assert policy.startswith("default-src 'none'") and "unsafe-eval" not in policy
    assert "script-src 'unsafe-inline'" not in policy and "http" not in policy


def test_formulas_in_csv_are_text_and_numbers_stay_numbers(tmp_path):
    run = write_run(tmp_path / "run", client_names=["=1+1", "-2", "+cmd|x", "Charité"])
    csv = figures_of(run)["accuracy-by-client"].table.to_csv()
    assert [line.split(",")[0] for line in csv.splitlines()[1:]] == [
        "'=1+1",
        "-2",
        "'+cmd|x",
        "Charité",
    ]


def test_unfinished_runs_are_shown_as_such(tmp_path):
    run = write_run(tmp_path / "run", rounds=30, done=12, state="interrupted")
    sections = sections_of(run)
    assert "ditto, seed 0: round 12 of 30, interrupted" in sections["runs"].notes[0]
    assert "ditto" in sections["comparison"].notes[0]
    assert "partition" not in figures_of(run), "cards come with the end"


def test_a_run_without_rounds_has_a_page_that_may_load_itself_again(tmp_path):
    run = write_run(tmp_path / "run", done=0, state="failed")
    page = build_page(read_methods([run]), refresh=5)
    assert page.figures == [] and "round 0 of 3, failed" in page.html
    assert '<meta http-equiv="refresh" content="5">' in page.html
    assert 'http-equiv="refresh"' not in build_page(read_methods([run])).html


def test_gains_are_differences_of_the_same_client(comparison):
    figures = figures_in(comparison)
    accuracy = figures["accuracy-by-client"].table
    gain = figures["gain-against-local"].table
    columns = list(accuracy.columns)
    local = {
        row[0]: row[columns.index("local: personalized models, accuracy, %")]
        for row in accuracy.rows
    }
    own = {
        row[0]: row[columns.index("pfedfda: personalized models, accuracy, %")]
        for row in accuracy.rows
    }
    place = list(gain.columns).index("pfedfda, points")
    assert "local, points" not in gain.columns
    for row in gain.rows:
        assert row[place] == pytest.approx(own[row[0]] - local[row[0]], abs=0.011)


def test_gains_are_those_of_the_seeds_that_both_have_as_in_the_table(tmp_path):
    write_seeds(tmp_path / "pfedfda", "pfedfda", (0, 1, 2))
    write_seeds(tmp_path / "local", "local", (0,))
    paths = [tmp_path / "pfedfda", tmp_path / "local"]
    figure = figures_in(sections_of(*paths))["gain-against-local"].table
    gains = [row[1] for row in figure.rows]
    table = compare(read_methods(paths), against="local")
    (row,) = [one for one in table.groups[0].methods if one.label == "pfedfda"]
    assert np.mean(gains) == pytest.approx(100 * row.figures["gain_over_local"].mean, abs=0.01)


def test_without_local_or_fedavg_the_own_global_model_is_the_reference(usual):
    assert "gain-against-global" in usual and "gain-against-local" not in usual


def test_scores_of_the_round_of_the_final_models_count(tmp_path, usual):
    run = write_run(tmp_path / "run")
    result = (run / "result.json").read_text()
    assert '"round": 3' in result
    (run / "result.json").write_text(result.replace('"round": 3', '"round": 2'))
    best = figures_of(run)
    assert best["accuracy-by-client"].table.rows != usual["accuracy-by-client"].table.rows


def test_figures_of_single_methods_appear_where_records_have_their_numbers(tmp_path, usual):
    plain = write_run(tmp_path / "plain")
    rich = write_run(
        tmp_path / "rich",
        "pfedvem",
        condition="contrast-3",
        diagnostics={"beta_means": lambda client: client / 4},
        training={
            "feature_surprise": lambda client, number: client - number,
            "feature_kurtosis": lambda client, number: 1.0,
            "confidence": lambda client, number: 1.0 + client,
            "model_deviation": lambda client, number: 0.1 * client,
        },
    )
    special = {"beta", "confidence", "model-deviation", "gaussianity"}
    assert special.isdisjoint(usual)
    figures = figures_of(plain, rich)
    assert special <= set(figures)
    shares = [row[1] for row in figures["confidence"].table.rows]
    assert shares == pytest.approx([10, 20, 30, 40])
    assert {row[1] for row in figures["beta"].table.rows} == {"clean", "contrast"}


def test_a_confidence_of_nothing_has_no_shares(tmp_path):
    run = write_run(tmp_path / "run", training={"confidence": lambda client, number: 0.0})
    assert "confidence" not in figures_of(run)


def test_curves_are_means_over_seeds_between_the_smallest_and_the_largest(tmp_path):
    run = write_seeds(tmp_path / "run", "ditto", (0, 1, 2))
    place = run / "seed-1" / "rounds.jsonl"
    place.write_text(place.read_text().replace('"mean": 0.8,', '"mean": 0.2,'))
    rows = figures_of(run)["curves-personalized"].table.rows
    assert rows[-1][:2] == ["ditto", 3]
    assert rows[-1][2:5] == pytest.approx([60.0, 20.0, 80.0])


def test_a_round_without_a_client_is_marked(tmp_path, usual):
    event = {"kind": "absent", "round": 2, "client": 1, "reason": "away"}
    whole = usual["curves-personalized"]
    marked = figures_of(write_run(tmp_path / "run", events=[event]))["curves-personalized"]
    chart = marked.panels[0].chart.to_dict()
    assert len(chart["layer"]) == len(whole.panels[0].chart.to_dict()["layer"]) + 1
    drawn = chart["datasets"][chart["layer"][-1]["data"]["name"]]
    assert [(row["round"], row["away"]) for row in drawn] == [(2, 1)]
    assert marked.caption != whole.caption and "<svg" in page_svg(marked.panels[0], is_alone=True)


def test_long_curves_are_thinned_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("fedtailor.report.figures.rounds.MOST_ROUNDS", 10)
    figure = figures_of(write_run(tmp_path / "run", rounds=25))["bytes"]
    assert [row[1] for row in figure.table.rows] == [1, 4, 7, 10, 13, 16, 19, 22, 25]
    assert "at most 10" in figure.caption


def test_the_reliability_diagram_names_the_error_of_the_records(usual):
    (panel,) = usual["reliability"].panels
    assert panel.subtitle == "ECE 10.0 %, the mean over clients"
    assert reliability.BINS == BINS


def test_many_events_are_counted_and_the_first_ones_listed(tmp_path):
    event = {"kind": "quarantine", "round": 1, "client": 2, "reason": "not finite"}
    run = write_run(tmp_path / "run", events=[event] * (MOST_EVENTS + 5))
    counts, listed = sections_of(run)["events"].tables
    assert counts.rows == [["ditto", "quarantine", MOST_EVENTS + 5]]
    assert len(listed.rows) == MOST_EVENTS and "505" in listed.title


def damage(folder, seed, count):
    """Return what a report makes of records with one of many damages: sections, or our error."""
    chance = random.Random(seed)
    run = write_run(
        folder / "run",
        "pfedfda",
        rounds=2,
        diagnostics={"beta_means": float},
        training={
            "feature_surprise": lambda client, number: 1.0,
            "confidence": lambda client, number: 1.0,
        },
        events=[{"kind": "failed", "round": 1, "client": 2, "reason": "x"}],
    )
    files = [path for path in sorted(run.rglob("*.json*")) if path.parent == run]
    outcomes = set()
    for number in range(count):
        path = files[number % len(files)]
        before = path.read_bytes()
        path.write_bytes(mutations.mutate_json(chance, before))
        try:
            sections_of(run)
            outcomes.add("page")
        except FedtailorError:
            outcomes.add("error")
        path.write_bytes(before)
    return outcomes


def test_damaged_records_give_a_page_or_an_error_of_ours(tmp_path):
    assert damage(tmp_path, 0, 7) <= {"page", "error"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 10))
def test_many_damages_give_a_page_or_an_error_of_ours(tmp_path, seed):
    assert damage(tmp_path, seed, 60) == {"page", "error"}


@pytest.mark.slow
def test_a_report_of_100_clients_and_500_rounds_is_small(tmp_path):
    folders = [
        write_run(tmp_path / algorithm, algorithm, clients=100, rounds=500, every=5)
        for algorithm in ("pfedfda", "ditto", "fedavg_ft", "local")
    ]
    assert len(build_page(read_methods(folders)).html.encode()) <= 6_000_000
