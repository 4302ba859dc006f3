"""The page of a report: what it holds, that it is self-contained and inert, and that it reads any
records."""

import html.parser
import random
import re
import subprocess
import sys

import pytest

from faults import mutations
from fedtailor.core.errors import FedtailorError
from fedtailor.core.scores import BINS
from fedtailor.report.figures import calibration
from fedtailor.report.methods import read_methods
from fedtailor.report.page.build import build_page
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


def page_of(*paths, **options):
    return build_page(read_methods(paths), **options)


def names_of(page):
    return [figure.name for figure in page.figures]


def figure_of(page, name):
    return next(figure for figure in page.figures if figure.name == name)


@pytest.fixture
def comparison(tmp_path):
    names = [f"class {number}" for number in range(CLASSES)]
    folders = []
    for algorithm in ("pfedfda", "fedavg_ft", "local"):
        folders.append(write_seeds(tmp_path / algorithm, algorithm, (0, 1), class_names=names))
    return folders


def test_a_comparison_has_its_figures_and_tables(comparison):
    page = page_of(*comparison)
    assert names_of(page) == [
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
    read = Reader(page.html)
    assert read.tags.count("svg") == 2 * len(page.figures)
    assert read.tags.count("table") >= len(page.figures) + 3
    text = " ".join(read.texts)
    assert "Differences from pfedfda over seeds" in text and "corrected p" in text
    assert "pfedfda, fedavg_ft, local on fashion_mnist" in text and "class 3" in text


def test_the_page_loads_nothing_and_says_so(comparison):
    page = page_of(*comparison)
    read = Reader(page.html)
    assert read.loads == [] and read.handlers == []
    assert read.tags.count("script") == 1 and "link" not in read.tags and "img" not in read.tags
    assert "default-src 'none'" in page.html
    assert "http" not in page.html.replace("http-equiv", "")


def test_no_torch_is_imported(tmp_path):
    run = write_run(tmp_path / "run")
    script = (
        "import sys; from fedtailor.report.methods import read_methods; from fedtailor.report.page import build;"
        f"build.build_page(read_methods([{str(run)!r}]));"
        "print([name for name in ('torch', 'altair', 'vl_convert') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_hostile_names_are_inert(tmp_path):
    run = write_run(
        tmp_path / "<b>run",
        HOSTILE.replace("\x00", ""),
        client_names=[f"{HOSTILE}{number}" for number in range(4)],
        class_names=[HOSTILE] * CLASSES,
        dataset=HOSTILE.replace("\x00", ""),
        condition=f"{HOSTILE}-3",
        diagnostics={HOSTILE: float, "beta_means": float},
        events=[{"kind": HOSTILE, "round": 1, "client": 0, "reason": HOSTILE}],
    )
    page = page_of(run)
    read = Reader(page.html)
    assert "img" not in read.tags and "b" not in read.tags and read.tags.count("script") == 1
    assert read.loads == [] and read.handlers == []
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page.html)
    assert "onerror" in " ".join(read.texts)
    page.html.encode()
    for figure in page.figures:
        Reader(figure.draw(820).standalone(figure.title, figure.caption))
        for line in figure.table.to_csv().splitlines():
            assert not line.startswith(("=", "@", "\t"))


def test_formulas_in_csv_are_text_and_numbers_stay_numbers(tmp_path):
    run = write_run(tmp_path / "run", client_names=["=1+1", "-2", "+cmd|x", "Charité"])
    csv = figure_of(page_of(run), "accuracy-by-client").table.to_csv()
    assert [line.split(",")[0] for line in csv.splitlines()[1:]] == [
        "'=1+1",
        "-2",
        "'+cmd|x",
        "Charité",
    ]


def test_unfinished_runs_are_shown_as_such(tmp_path):
    run = write_run(tmp_path / "run", rounds=30, done=12, state="interrupted")
    page = page_of(run)
    assert "ditto, seed 0: round 12 of 30, interrupted" in page.html
    assert "with their last evaluation in the table of all models: ditto." in page.html
    assert figure_of(page, "partition").title == "Test examples per client and class"


def test_a_run_without_rounds_has_a_page(tmp_path):
    run = write_run(tmp_path / "run", done=0, state="failed")
    page = page_of(run)
    assert page.figures == [] and "round 0 of 3, failed" in page.html


def test_a_page_of_a_run_in_progress_loads_itself_again(tmp_path):
    run = write_run(tmp_path / "run")
    assert '<meta http-equiv="refresh" content="5">' in page_of(run, refresh=5).html
    assert "refresh" not in page_of(run).html.partition("<style>")[0]


def test_gains_are_differences_of_the_same_client(comparison):
    page = page_of(*comparison)
    accuracy = figure_of(page, "accuracy-by-client").table
    gain = figure_of(page, "gain-against-local").table
    columns = list(accuracy.columns)
    local = {row[0]: row[columns.index("local: personalized, %")] for row in accuracy.rows}
    own = {row[0]: row[columns.index("pfedfda: personalized, %")] for row in accuracy.rows}
    place = list(gain.columns).index("pfedfda, points")
    assert "local, points" not in gain.columns
    for row in gain.rows:
        assert row[place] == pytest.approx(own[row[0]] - local[row[0]], abs=0.011)


def test_without_local_or_fedavg_the_own_global_model_is_the_reference(tmp_path):
    page = page_of(write_run(tmp_path / "run"))
    assert "gain-against-global" in names_of(page) and "gain-against-local" not in names_of(page)


def test_scores_of_the_round_of_the_final_models_count(tmp_path):
    run = write_run(tmp_path / "run", rounds=4)
    result = (run / "result.json").read_text()
    (run / "result.json").write_text(result.replace('"round": 4', '"round": 2'))
    last = figure_of(page_of(write_run(tmp_path / "other", rounds=4)), "accuracy-by-client")
    best = figure_of(page_of(run), "accuracy-by-client")
    assert best.table.rows != last.table.rows


def test_figures_of_single_methods_appear_where_records_have_their_numbers(tmp_path):
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
    assert special.isdisjoint(names_of(page_of(plain)))
    page = page_of(plain, rich)
    assert special <= set(names_of(page))
    shares = [row[2] for row in figure_of(page, "confidence").table.rows]
    assert shares == pytest.approx([10, 20, 30, 40])
    assert {row[1] for row in figure_of(page, "beta").table.rows} == {"clean", "contrast"}


def test_curves_are_means_over_seeds_between_the_smallest_and_the_largest(tmp_path):
    run = write_seeds(tmp_path / "run", "ditto", (0, 1, 2))
    place = run / "seed-1" / "rounds.jsonl"
    place.write_text(place.read_text().replace('"mean": 0.8,', '"mean": 0.2,'))
    rows = figure_of(page_of(run), "curves-personalized").table.rows
    assert rows[-1][:2] == ["ditto", 3]
    assert rows[-1][2:5] == pytest.approx([60.0, 20.0, 80.0])


def test_long_curves_are_thinned_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("fedtailor.report.figures.curves.MOST_ROUNDS", 10)
    monkeypatch.setattr("fedtailor.report.figures.curves.thinned.__defaults__", (10,))
    figure = figure_of(page_of(write_run(tmp_path / "run", rounds=25)), "bytes")
    assert [row[1] for row in figure.table.rows] == [1, 4, 7, 10, 13, 16, 19, 22, 25]
    assert "at most 10 are drawn and listed" in figure.caption


def test_the_expected_calibration_error_is_that_of_the_bins():
    bins = {7: calibration.Bin(8, 4.0, 3), 14: calibration.Bin(12, 12.0, 9)}
    assert calibration.calibration_error(bins) == pytest.approx((1 + 3) / 20)
    assert calibration.BINS == BINS


def test_many_events_are_counted_and_the_first_ones_listed(tmp_path):
    event = {"kind": "quarantine", "round": 1, "client": 2, "reason": "not finite"}
    page = page_of(write_run(tmp_path / "run", events=[event] * (MOST_EVENTS + 5)))
    (section,) = [section for section in page.sections if section.name == "events"]
    counts, listed = section.tables
    assert counts.table.rows == [["ditto", "quarantine", MOST_EVENTS + 5]]
    assert (
        len(listed.table.rows) == MOST_EVENTS
        and f"The first {MOST_EVENTS} of 505 events" in page.html
    )


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed > 0)) for seed in range(10)]
)
def test_damaged_records_give_a_page_or_an_error_of_ours(tmp_path, seed):
    chance = random.Random(seed)
    run = write_run(
        tmp_path / "run",
        "pfedfda",
        diagnostics={"beta_means": float},
        training={
            "feature_surprise": lambda client, number: 1.0,
            "confidence": lambda client, number: 1.0,
        },
        events=[{"kind": "failed", "round": 1, "client": 2, "reason": "x"}],
    )
    files = [path for path in sorted(run.rglob("*.json*")) if path.parent == run]
    outcomes = set()
    for number in range(60):
        path = files[number % len(files)]
        before = path.read_bytes()
        path.write_bytes(mutations.mutate_json(chance, before))
        try:
            page_of(run).html.encode()
            outcomes.add("page")
        except FedtailorError:
            outcomes.add("error")
        path.write_bytes(before)
    assert outcomes == {"page", "error"}


@pytest.mark.slow
def test_a_report_of_100_clients_and_500_rounds_is_small(tmp_path):
    folders = [
        write_run(tmp_path / algorithm, algorithm, clients=100, rounds=500, every=5)
        for algorithm in ("pfedfda", "ditto", "fedavg_ft", "local")
    ]
    assert len(page_of(*folders).html.encode()) <= 6_000_000
