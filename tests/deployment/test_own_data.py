"""Sites with their own folders of pictures, tables with text and empty cells, and arrays: as a
simulation of them."""

from pathlib import Path

import numpy as np
import pytest

from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.data.dataset import Dataset
from fedtailor.data.input_specification import read_input_specification
from fedtailor.data.options import DataOptions
from fedtailor.deployment.agreement import merge_classes
from fedtailor.deployment.options import SiteOptions
from fedtailor.deployment.site_check import _data
from fedtailor.deployment.site_data import describe_dataset, read_dataset
from marks import slow
from sites import (
    VALUES,
    World,
    assert_same_run,
    divide_digits,
    write_arrays,
    write_pictures,
    write_table,
)

NAMES = ("clinic", "hospital", "office", "practice")


def world_of(path, write, *, data=None, site=None, **values):
    """Return a world of four sites, one of them new."""
    evaluation = {**VALUES["evaluation"], "baselines": "none"}
    settings = {**VALUES, "algorithm": {"name": "pfedfda"}, "data": data or {}}
    settings |= {"evaluation": evaluation, **values}
    return World(path, names=NAMES, new=("hospital",), values=settings, site=site or {}).write(
        write
    )


@pytest.mark.parametrize(
    ("data", "divided"),
    [
        ({"normalize": "training", "val_fraction": 0.2}, ()),
        pytest.param({"image_size": 8}, NAMES, marks=pytest.mark.slow),
    ],
    ids=["without a test part", "with a test part"],
)
def test_folders_of_pictures(tmp_path, data, divided):
    def write(folder, name):
        write_pictures(folder, name, divided=divided)

    world = world_of(tmp_path, write, data=data)
    world.serve()
    assert_same_run(world, world.simulate())


@pytest.mark.parametrize(
    ("site", "data"),
    [
        slow({}, {}),
        ({"group": "patient"}, {}),
        ({}, {"numbers": "bins", "missing": "indicator"}),
        slow({}, {"numbers": "quantile"}),
    ],
    ids=["rows", "patients", "bins", "quantile"],
)
def test_tables(tmp_path, site, data):
    def write(folder, name):
        write_table(folder, name, patients=bool(site))

    world = world_of(tmp_path, write, data=data, site={"label_column": "diagnosis", **site})
    world.serve()
    simulated = world.simulate(
        data={"path": str(tmp_path / "all"), "new_clients": ["hospital"], **site, **data}
    )
    assert_same_run(world, simulated)
    served = read_input_specification(tmp_path / "server" / "runs" / "0001")
    inputs = read_input_specification(simulated)
    assert served.columns == inputs.columns
    assert served.mean.tolist() == inputs.mean.tolist()
    assert served.std.tolist() == inputs.std.tolist()


def test_tables_that_mark_rows_for_testing(tmp_path):
    def write(folder, name):
        write_table(folder, name)
        table = folder.with_suffix(".csv")
        header, *rows = table.read_text().splitlines()
        marked = [f"{row},{'test' if number % 3 else 'train'}" for number, row in enumerate(rows)]
        table.write_text("\n".join([f"{header},split", *marked]))

    world = world_of(tmp_path, write, site={"label_column": "diagnosis"})
    world.serve()
    data = {"path": str(tmp_path / "all"), "new_clients": ["hospital"]}
    assert_same_run(world, world.simulate(data=data))


def write_series(folder, name):
    generator = np.random.default_rng(len(name))
    y = np.arange(30) % 10
    x = y[:, None, None] + generator.normal(len(name), 2, (30, 12, 2))
    write_arrays(folder, x, y)


@pytest.mark.slow
def test_series(tmp_path):
    world = world_of(tmp_path, write_series, data={"kind": "series"})
    world.serve()
    simulated = world.simulate()
    assert_same_run(world, simulated)
    inputs = read_input_specification(tmp_path / "server" / "runs" / "0001")
    assert (inputs.kind, inputs.shape, inputs.mean.shape) == ("series", (2, 12), (2,))
    assert inputs.mean.tolist() == read_input_specification(simulated).mean.tolist()


def test_sites_with_arrays_that_can_be_series_ask_for_the_kind(tmp_path):
    """The server learns it only from sites that share texts of errors."""
    site = {"share": ["scores", "errors"]}
    refused(tmp_path, write_series, r'say kind = "series" in \[data\] of the server', site=site)


def test_a_site_with_few_rows_does_not_say_its_means(tmp_path):
    world = world_of(
        tmp_path,
        lambda folder, name: write_table(folder, name, rows=11 if name == "office" else 40),
    )
    with pytest.raises(RunError, match=r"office.* fewer than 10 training examples"):
        world.serve()


def without_names():
    """Return data whose classes have no names."""
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    return Dataset(name="numbers", x=x, y=np.arange(40) % 2, num_classes=2, white=1.0)


def test_data_of_a_function_need_no_names_of_classes():
    options = SiteOptions(name="clinic", data="deployment.test_own_data:without_names")
    dataset = read_dataset(options, DataOptions(path="each-site"), Path())
    assert describe_dataset(dataset)["classes"] == ["0", "1"]
    assert "0 20, 1 20" in _data(Path(), options)


def refused(tmp_path, write, message, **options):
    world = world_of(tmp_path, write, **options)
    with pytest.raises((DataError, ConfigError, RunError), match=message):
        world.serve()
    assert not world.path.joinpath("server/runs/0001").exists()


def test_pictures_of_two_sizes_are_refused_with_both(tmp_path):
    data = divide_digits(NAMES)

    def write(folder, name):
        x, y = data[name]
        write_arrays(folder, x.repeat(2, axis=1).repeat(2, axis=2) if name == "office" else x, y)

    refused(
        tmp_path,
        write,
        r"differ in shape: .* has \[1, (8, 8|16, 16)\], and .* has \[1, (8, 8|16, "
        r"16)\].*image_size",
    )


def test_a_test_part_at_some_sites_only_is_refused(tmp_path):
    def write(folder, name):
        write_pictures(folder, name, divided=("practice",))

    refused(
        tmp_path,
        write,
        "'practice' come with a test part, and those of 'clinic' do not: set data.test",
    )


def test_tables_with_other_columns_are_refused(tmp_path):
    def write(folder, name):
        write_table(folder, name)
        if name == "office":
            path = folder.with_suffix(".csv")
            path.write_text(path.read_text().replace("dose", "quantity"))

    refused(tmp_path, write, "differ in columns.*dose.*quantity|differ in columns.*quantity.*dose")


def test_a_class_that_the_server_does_not_name_is_refused(tmp_path):
    deploy = {"classes": ["healthy", "sick"]}
    message = "refuses: the data has a class 'other' that the model does not know"
    refused(tmp_path, write_pictures, message, data={"image_size": 8}, deploy=deploy)


def test_names_of_classes_are_merged_in_their_order():
    assert merge_classes([("b", "a"), ("b", "a")]) == ("b", "a")
    assert merge_classes([("b",), ("a", "c")]) == ("a", "b", "c")
    assert merge_classes([("10", "9"), ("1",)]) == ("1", "9", "10")
    assert merge_classes([("-1", "0"), ("-2",)]) == ("-2", "-1", "0")
    assert merge_classes([("1", "2"), ("02", "01")]) == ("01", "1", "02", "2")


@pytest.mark.parametrize(
    ("site", "where"),
    [
        ({}, 'label_column = "outcome" in site.toml'),
        ({"label_column": "oucome"}, 'label_column = "..." in site.toml'),
        ({"label_column": "class", "group": "p"}, 'group = "..." in site.toml'),
    ],
)
def test_errors_name_the_options_as_a_site_writes_them(site, where, tmp_path):
    rows = [f"{number},{number % 2},{number % 2}" for number in range(20)]
    (tmp_path / "table.csv").write_text("\n".join(["age,class,outcome", *rows]))
    with pytest.raises(DataError) as error:
        read_dataset(
            SiteOptions(name="a", data="table.csv", **site), DataOptions(path="x"), tmp_path
        )
    assert where in error.value.message and "data." not in error.value.message
    assert "--set" not in str(error.value)
