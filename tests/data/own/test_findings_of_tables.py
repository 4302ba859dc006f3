"""What the check says of messy tables of several hospitals: all of it, in one go."""

import numpy as np
import pytest

from fedtailor.core.errors import DataError
from fedtailor.data.options import DataOptions
from fedtailor.data.own.read import load_own, read_own


def hospital(seed, rows=60):
    """Return the columns of one site."""
    draw = np.random.default_rng(seed)
    return {
        "age": draw.integers(30, 85, rows).astype(str).tolist(),
        "glucose": [f"{value:.2f}" for value in draw.lognormal(1.8, 0.25, rows)],
        "chol": [f"{value:.2f}" for value in draw.normal(5.5, 1, rows)],
        "smoker": draw.choice(["never", "current"], rows).tolist(),
        "label": draw.choice(["sick", "healthy"], rows).tolist(),
    }


@pytest.fixture
def sites():
    return {"North": hospital(0), "South": hospital(1), "West": hospital(2)}


def check(folder, sites, **options):
    folder.mkdir()
    for site, columns in sites.items():
        rows = [columns, *zip(*columns.values(), strict=True)]
        text = "\n".join(",".join(row) for row in rows)
        (folder / f"{site}.csv").write_text(text + "\n", encoding="utf-8")

    return read_own(str(folder), DataOptions(path=str(folder), **options)).findings


def messages(findings, kind):
    return [problem.message for problem in findings.problems if problem.kind == kind]


def scale(columns, name, factor):
    columns[name] = [f"{float(cell) * factor:.5g}" for cell in columns[name]]


def test_clean_tables_have_no_finding(tmp_path, sites):
    assert not check(tmp_path / "d", sites).problems


@pytest.mark.parametrize("factor", [10, 18, 38.67, 88.4, 1000, 1 / 18])
def test_another_unit_at_one_site_is_named(tmp_path, sites, factor):
    scale(sites["West"], "glucose", factor)
    (message,) = messages(check(tmp_path / "d", sites), "unit_differs")
    assert "'glucose'" in message and "'West'" in message


def test_other_patients_are_no_other_unit(tmp_path, sites):
    """Tails as heavy as those of inflammation overlap, and a shift keeps the spread."""
    for seed, (columns, median) in enumerate(zip(sites.values(), (1, 10, 10), strict=True)):
        tail = np.random.default_rng(seed).lognormal(np.log(median), 1.3, 60)
        columns["crp"] = [f"{value:.3f}" for value in tail]
        columns["year"] = [f"{value + 2000 * (median == 10)}" for value in range(1, 61)]

    assert not check(tmp_path / "d", sites).problems


def test_another_unit_at_one_site_hides_no_missing_values_elsewhere(tmp_path, sites):
    scale(sites["West"], "chol", 1 / 38.67)
    sites["South"]["chol"][::3] = ["0"] * 20
    findings = check(tmp_path / "d", sites)
    (missing,) = messages(findings, "value_means_missing")
    assert "cells of 0" in missing and "'South' 20" in missing
    (unit,) = messages(findings, "unit_differs")
    assert "'chol'" in unit and "'West'" in unit


def test_numbers_that_mean_missing_are_named_with_the_option_that_says_so(tmp_path, sites):
    sites["West"]["chol"][::3] = ["0"] * 20
    sites["South"]["glucose"][::6] = ["-9"] * 10
    sites["North"]["age"][:3] = ["999"] * 3
    found = messages(check(tmp_path / "d", sites), "value_means_missing")
    assert (
        len(found) == 3 and sum("'data.missing_values={chol = [0]}'" in one for one in found) == 1
    )
    values = {"chol": [0], "glucose": [-9], "age": [999]}
    options = DataOptions(path=str(tmp_path / "d"), missing_values=values)
    dataset, findings = read_own(str(tmp_path / "d"), options)
    assert not findings.problems and int(np.isnan(dataset.x).sum()) == 33


def test_a_zero_that_all_sites_have_and_a_code_among_few_values_are_measurements(tmp_path, sites):
    for columns in sites.values():
        columns["dose"] = ["0", "100", "200"] * 20
        columns["packs"] = [f"{value}" for value in [*[0] * 20, *range(30, 70)]]

    assert not check(tmp_path / "d", sites).problems


def test_a_second_header_is_one_finding(tmp_path, sites):
    for name, unit in zip(sites["West"], ["years", "mmol/l", "mmol/l", "", ""], strict=True):
        sites["West"][name].insert(0, unit)

    findings = check(tmp_path / "d", sites)
    assert [problem.kind for problem in findings.errors] == ["second_header"]


def test_many_numbers_as_labels_and_few_rows_are_told_by_check_and_run(tmp_path, sites):
    draw = np.random.default_rng(0)
    for columns in sites.values():
        columns["label"] = [str(value) for value in draw.integers(0, 37, 60)]
    sites["East"] = {name: cells[:12] for name, cells in hospital(3).items()}
    sites["East"]["label"] = [str(value) for value in draw.integers(0, 37, 12)]
    findings = check(tmp_path / "d", sites)
    assert ("warning", "many_numbers") in findings.counts
    (message,) = messages(findings, "few_examples")
    dataset = load_own(str(tmp_path / "d"), DataOptions(path=str(tmp_path / "d")))
    assert "12 " in message and f"Warning: {message}" in dataset.notes


def test_all_problems_are_told_at_once(tmp_path, sites):
    west = sites["West"]
    scale(west, "glucose", 18)
    west["Cholesterol"] = west.pop("chol")
    west["weight"] = west["age"]
    west["smoker"] = [""] * 60
    sites["South"]["admitted"] = ["2024-01-31"] * 60
    sites["South"]["label"][4] = ""
    sites["South"]["glucose"][5] = "-"
    sites["South"]["chol"][::3] = ["0"] * 20
    sites["North"]["patient_id"] = [f"N{row}" for row in range(60)]
    sites["North"]["age"][1] = "1e99"
    sites["East"] = {name: cells[:12] for name, cells in hospital(3).items()}
    del sites["East"]["label"]
    findings = check(tmp_path / "d", sites, label_column="label")
    kinds = {kind for _, kind in findings.counts}
    assert kinds >= {
        *("missing_column", "extra_column", "missing_label", "missing_label_column", "dates"),
        *("identifier", "too_many_categories", "not_finite", "unit_differs"),
        *("value_means_missing",),
    }
    assert any("'-' 1" in note for note in findings.notes)
    assert any("'Cholesterol' here" in text for text in messages(findings, "missing_column"))


def test_a_column_that_is_empty_at_a_site_and_spreadsheets_are_named(tmp_path, sites):
    sites["West"]["glucose"] = [""] * 60
    findings = check(tmp_path / "d", sites)
    assert "'West'" in messages(findings, "empty_at_site")[0]
    (tmp_path / "d" / "East.xlsx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"East\.xlsx: .*CSV"):
        load_own(str(tmp_path / "d"), DataOptions())


def test_cholesterol_of_real_hospitals_that_was_not_measured_is_named(data_dir):
    folder = data_dir / "heart"
    if not folder.is_dir():
        pytest.skip("no data of heart disease")

    options = DataOptions(path=str(folder), label_column="disease")
    (message,) = messages(read_own(str(folder), options).findings, "value_means_missing")
    assert "'chol'" in message and "'Switzerland' 123" in message


def test_a_rule_for_a_column_that_no_table_has_is_refused(tmp_path):
    (tmp_path / "A.csv").write_text("chol,label\n1,a\n2,b\n")
    options = DataOptions(path=str(tmp_path), missing_values={"cohl": [0]})
    with pytest.raises(DataError, match="did you mean 'chol'"):
        load_own(str(tmp_path), options)


def test_commas_that_are_decimal_points_make_a_lone_point_one_of_thousands(tmp_path):
    (tmp_path / "A.csv").write_text("x;label\n1.250;a\n2;b\n")
    options = DataOptions(path=str(tmp_path), decimal="comma")
    assert load_own(str(tmp_path), options).x.tolist() == [[1250.0], [2.0]]


def test_columns_with_heavy_tails_are_noted_with_what_to_try(tmp_path, sites):
    draw = np.random.default_rng(0)
    for columns in sites.values():
        columns["crea"] = [f"{value:.2f}" for value in draw.lognormal(0, 1.5, 60)]

    (note,) = [note for note in check(tmp_path / "d", sites).notes if "data.numbers" in note]
    assert "'crea'" in note and "'chol'" not in note and "'age'" not in note
