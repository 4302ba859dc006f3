"""Comparisons as Markdown, LaTeX, CSV and JSON, and on the terminal, whatever the names of the
methods are."""

import csv
import io
import json
import re
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.cli.show.results import show_comparison
from fedtailor.report import compare, read_methods
from fedtailor.report.comparison import BESIDE_ACCURACY, FIGURES
from fedtailor.report.latex import escape_latex, to_latex
from fedtailor.report.tables import tables_of, to_csv, to_json, to_markdown
from written_runs import write_run, write_seeds

HOSTILE = [
    "=HYPERLINK(1)",
    "+1+1",
    "-1+1",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1+1",
    "＝1+1",
    "a|b",
    "<script>alert(1)</script>",
    r"\input{/etc/passwd}",
    r"a & b \\ c",
    "100 % $x$ #1 a_b {c} ~^ \" ' ` ?` --",
    "} \\end{table}",
    "line\nbreak",
    "Charité, Łódź, Ångström, ß, 中文, \u202eright to left",
    "**bold** [link](http://example.org) `code`",
    "\x1b[31mred",
]


def scores(*counts):
    return {client: count / 8 for client, count in enumerate(counts)}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Return a comparison of Local, Ditto and FedAvg in two seeds, with new clients."""
    folder = tmp_path_factory.mktemp("tables")
    counts = {
        "local": [(4, 6, 2), (3, 6, 4)],
        "ditto": [(6, 6, 3), (5, 6, 6)],
        "fedavg": [(3, 4, 2), (2, 5, 4)],
    }
    for name, (first, second) in counts.items():
        points = [
            {"personalized": scores(*each), "global": scores(*counts["fedavg"][0])}
            for each in (first, second)
        ]
        write_seeds(
            folder / name,
            dict(enumerate(points)),
            algorithm=name,
            new={"personalized": {5: first[0] / 8}},
        )
    return compare(read_methods([folder / name for name in counts]))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Return a comparison of methods whose names want to be something else."""
    folder = tmp_path_factory.mktemp("hostile")
    runs = [
        write_run(folder / str(number), {"personalized": scores(4, number % 8)}, algorithm=name)
        for number, name in enumerate(HOSTILE)
    ]
    return compare(read_methods(runs))


def test_the_tables_hold_what_was_computed(comparison):
    methods, differences, tests, *new = tables_of(comparison)
    assert methods.title == (
        "Methods: accuracy in %, known clients, personalized models, digits, round 3"
    )
    # These records hold no other metric of clients than the accuracy.
    names = [name for name in FIGURES if name not in BESIDE_ACCURACY]
    assert methods.columns[3:] == tuple(FIGURES[name] for name in names)
    assert methods.rows[1] == (
        *("ditto", "2", "3", "66.7 ± 4.2", "50.0 ± 12.5", "68.8 ± 6.2"),
        *("+14.6 ± 2.1", "0.0 ± 0.0", "+29.2 ± 4.2", "0.0 ± 0.0"),
    )
    assert differences.rows[0] == ("ditto", "2", "+14.6 ± 2.1", "-")
    assert tests.rows[0] == (
        *("ditto", "0", "3", "0", "+12.5", "0.0 to +25.0"),
        *("0.500", "1.000", "2 / 1 / 0"),
    )
    assert (
        len(tests.rows) == 4
        and [table.title.split(", ")[1] for table in new] == ["new clients"] * 3
    )
    assert all(
        len(row) == len(table.columns) for table in tables_of(comparison) for row in table.rows
    )


def test_a_title_names_all_data_and_none_that_was_not_compared(tmp_path):
    data = {"first": {"dataset": "digits"}, "second": {"dataset": "heart\n"}, "third": {}}
    runs = [
        write_run(tmp_path / name, {"personalized": scores(4)}, algorithm=name, data=of_run)
        for name, of_run in data.items()
    ]
    unseen = {"dataset": "of no score"}
    runs.append(write_run(tmp_path / "fourth", {"global": scores(4)}, algorithm="a", data=unseen))
    title = tables_of(compare(read_methods(runs)))[0].title
    assert title.endswith("models, digits or heart or unknown data, round 3")


def test_csv_holds_every_number_unrounded(comparison):
    rows = list(csv.DictReader(io.StringIO(to_csv(comparison))))
    known = [row for row in rows if row["group"] == "known"]
    assert [row["seed"] for row in known if row["method"] == "ditto"] == [
        "0",
        "1",
        "mean",
        "standard error",
    ]
    for summary in comparison.groups[0].methods:
        own = {row["seed"]: row for row in known if row["method"] == summary.label}
        for name, figure in summary.figures.items():
            assert {seed: float(own[str(seed)][name]) for seed in summary.seeds} == figure.by_seed
            assert (
                float(own["mean"][name]) == figure.mean
                and float(own["standard error"][name]) == figure.standard_error
            )
    for difference in comparison.groups[0].differences:
        own = {row["seed"]: row for row in known if row["method"] == difference.label}
        for seed, test in difference.by_seed.items():
            row = own[str(seed)]
            assert [int(row[name]) for name in ("both", "missing", "wins", "ties", "losses")] == [
                test.clients,
                test.missing,
                *(test.wins, test.ties, test.losses),
            ]
            assert (float(row["interval_low"]), float(row["interval_high"])) == test.interval
            assert float(row["wilcoxon_p_value"]) == test.wilcoxon.p_value
            assert float(row["holm_p_value"]) == test.holm_p_value
        assert float(own["mean"]["difference"]) == difference.over_seeds.mean
        assert own["mean"]["holm_p_value"] == own["mean"]["wins"] == ""


def test_one_seed_has_no_row_of_standard_errors(tmp_path):
    runs = [
        write_run(tmp_path / name, {"personalized": scores(4)}, algorithm=name)
        for name in ("local", "ditto")
    ]
    single = compare(read_methods(runs))
    rows = list(csv.DictReader(io.StringIO(to_csv(single))))
    assert [row["seed"] for row in rows] == ["0", "mean"] * 2 and rows[2]["interval_low"] == ""
    (methods, differences, tests) = tables_of(single)
    assert differences.rows == (("ditto", "1", "0.0", "-"),) and tests.rows[0][5] == "-"
    assert "standard error" not in methods.below


def test_there_is_no_table_of_tests_where_nothing_can_be_tested(tmp_path):
    runs = [
        write_run(tmp_path / name, {"personalized": scores(4)}, algorithm=name, split=name)
        for name in ("a", "b")
    ]
    (methods,) = tables_of(compare(read_methods(runs)))
    assert [row[0] for row in methods.rows] == ["a", "b"]


def test_json_is_the_record(comparison):
    record = json.loads(to_json(comparison))
    assert record == json.loads(json.dumps(comparison.as_record()))
    figures = record["groups"]["known"]["methods"][1]["figures"]
    assert figures["mean"]["by_seed"] == {"0": pytest.approx(15 / 24), "1": pytest.approx(17 / 24)}
    assert set(record["groups"]) == {"known", "new"} and record["reference"] == "local"


def test_markdown_holds_tables_warnings_and_notes(comparison):
    text = to_markdown(comparison)
    assert "| ditto | 2 | 3 | 66.7 ± 4.2 |" in text and "\n\n**Notes**\n\n* " in text
    for lines in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines.splitlines()}) == 1


def test_names_are_no_markdown_and_no_html(hostile):
    text = to_markdown(hostile)
    assert not re.search(r"(?<!\\)<|(?<!\\)>|(?<!\\)`|(?<!\\)\[", text)
    assert "\x1b" not in text and "\u202e" not in text
    methods = text.split("\n\n")[1].splitlines()
    assert len(methods) == 2 + len(HOSTILE)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in methods} == {7}


def test_names_are_no_formulas(hostile):
    rows = list(csv.reader(io.StringIO(to_csv(hostile))))
    names = list(dict.fromkeys(row[1] for row in rows[1:]))
    assert len(names) == len(HOSTILE) and {row[2] for row in rows[1:]} == {"'=HYPERLINK(1)"}
    assert (
        names[:5] == ["'=HYPERLINK(1)", "'+1+1", "'-1+1", "'@SUM(A1)", "'=1+1"]
        and names[6] == "'＝1+1"
    )
    assert not any(cell[:1] in "=+@\t\r\n" for row in rows for cell in row if cell)
    negative = [cell for row in rows for cell in row if cell.startswith("-")]
    assert all(float(cell) < 0 for cell in negative)


def cells_of(line):
    return re.split(r"(?<!\\)&", line)


def assert_is_balanced(text):
    """Check that braces which group are closed in their order, and that nothing but commands of
    ours is left."""
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text.replace("\\\\", "")):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert depth == 0


def check_latex(text):
    """Check what a compiler would object to; return the text without comments."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert_is_balanced(body)
    for column_types, rows in re.findall(
        r"\\begin\{tabular\}\{(\w+)\}\n(.*?)\\end\{tabular\}", body, re.DOTALL
    ):
        lines = [line for line in rows.splitlines() if not line.endswith("rule")]
        assert lines and all(line.endswith(r" \\") for line in lines)
        assert {len(cells_of(line)) for line in lines} == {len(column_types)}
    for name in ("table", "tabular"):
        assert body.count(rf"\begin{{{name}}}") == body.count(rf"\end{{{name}}}") > 0
    return body


def test_latex_is_well_formed(comparison, hostile):
    text = to_latex(comparison)
    check_latex(text)
    assert r"ditto & 2 & 3 & 66.7 $\pm$ 4.2 & 50.0 $\pm$ 12.5" in text and r"\toprule" in text
    assert r"fedavg & 2 & $-$10.4 $\pm$ 2.1" in text
    body = check_latex(to_latex(hostile))
    assert r"\input" not in body and r"\textbackslash{}input" in body


def test_text_is_escaped_for_latex():
    assert escape_latex(r"\a_b & 5 % {x} #1 $y$") == r"\textbackslash{}a\_b \& 5 \% \{x\} \#1 \$y\$"
    assert escape_latex("Łódź, Ångström, ß") == "Łódź, Ångström, ß"
    assert escape_latex("中 ą\n") == "{[}U+4E2D{]} {[}U+0105{]} "


@settings(max_examples=30)
@given(st.text())
def test_no_text_leaves_its_place_in_latex(text):
    escaped = escape_latex(text)
    assert "\n" not in escaped and len(cells_of(escaped)) == 1
    assert_is_balanced(escaped)
    assert not re.search(r"(?<!\\)[#%]", escaped)


def has_booktabs():
    if not shutil.which("pdflatex") or not shutil.which("kpsewhich"):
        return False
    return bool(
        subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True, text=True).stdout.strip()
    )


@pytest.mark.skipif(not has_booktabs(), reason="no LaTeX with booktabs is installed")
@pytest.mark.parametrize("preamble", ["", r"\usepackage[T1]{fontenc}"])
def test_latex_compiles(comparison, hostile, tmp_path, preamble):
    (tmp_path / "nice.tex").write_text(to_latex(comparison))
    (tmp_path / "hostile.tex").write_text(to_latex(hostile))
    everything = escape_latex("".join(map(chr, range(32, 0x180))) + "±×≤≥µ–—…")
    (tmp_path / "document.tex").write_text(
        rf"\documentclass{{article}}{preamble}\usepackage{{booktabs}}\begin{{document}}"
        rf"\input{{nice}}\input{{hostile}}{everything}\end{{document}}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "document"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    log = (tmp_path / "document.log").read_text(errors="replace")
    assert "LaTeX Warning: Command" not in log and "Missing character" not in log


def test_the_terminal_shows_tables_and_says_warnings(comparison, hostile, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    show_comparison(comparison)
    shown = capsys.readouterr()
    assert "Tests against local in each seed" in shown.out and "+14.6 ± 2.1" in shown.out
    assert shown.out.count("clients: those that both methods have a score of") == 1
    assert "note: Seeds differ in" in shown.err and "warning" not in shown.out
    monkeypatch.setenv("COLUMNS", "80")
    show_comparison(hostile)
    shown = capsys.readouterr()
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "\x1b" not in shown.out + shown.err and "\u202e" not in shown.out
