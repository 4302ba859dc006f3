"""Names as users spell them: case does not matter, and a hyphen is an underscore."""

import pytest

from fedtailor import algorithms, data, models
from fedtailor.core.errors import ConfigError, did_you_mean, find_name, match_name
from fedtailor.core.options import check_value
from fedtailor.data.corruptions.shift import parse_shift
from fedtailor.data.inventory import describe_dataset
from fedtailor.data.partitions import PARTITIONS, parse_partition
from fedtailor.experiment.config import make_config
from fedtailor.simulation import engines

TABLES = {
    "algorithms": algorithms.ALGORITHMS,
    "datasets": data.DATASETS,
    "models": models.MODELS,
    "partitions": PARTITIONS,
    "engines": engines.ENGINES,
}


@pytest.mark.parametrize("name", ["fedavg_ft", "fedavg-ft", "FedAvg-FT", "FEDAVG_FT"])
def test_spellings_of_one_name(name):
    assert match_name(name, ["fedavg", "fedavg_ft"]) == "fedavg_ft"
    assert find_name("algorithm", name, ["fedavg", "fedavg_ft"]) == "fedavg_ft"


def test_the_exact_spelling_comes_first():
    assert match_name("pm", ["PM", "pm"]) == "pm" and match_name("Pm", ["PM", "pm"]) == "PM"


def test_another_name_is_an_error_that_knows_the_nearest():
    assert match_name("fedavg", ["fedprox"]) is None
    with pytest.raises(
        ConfigError, match=r"unknown model 'ml'; did you mean 'mlp'\? Known: cnn, mlp\."
    ) as caught:
        find_name("model", "ml", ["mlp", "cnn"], key="model.name")
    assert (caught.value.key, caught.value.allowed, caught.value.got) == (
        "model.name",
        ["cnn", "mlp"],
        "ml",
    )
    assert did_you_mean("FedAvg-TF", ["fedavg_ft", "local"]) == "; did you mean 'fedavg_ft'?"


@pytest.mark.parametrize("kind", TABLES)
def test_no_two_entries_of_a_table_are_spellings_of_one_name(kind):
    names = list(TABLES[kind])
    for name in names:
        assert match_name(name.upper().replace("_", "-"), names) == name


def test_a_configuration_holds_the_names_of_the_tables():
    config = make_config(
        {
            "data": {"dataset": "Fashion-MNIST", "partition": "Cyclic-Classes(k=2)"},
            "model": {"name": "CIFAR-CNN", "others": ["MLP"]},
            "algorithm": {"name": "LG-FedAvg"},
            "engine": {"name": "Workers"},
            "federation": {"train": "ALL"},
        }
    )
    assert config.data.dataset == "fashion_mnist"
    assert (config.model.name, config.model.others) == ("cifar_cnn", ("mlp",))
    assert (config.algorithm.name, config.engine.name) == ("lg_fedavg", "workers")


def test_every_lookup_takes_any_spelling():
    assert str(parse_partition("Label-Slices(k=2)")) == str(parse_partition("label_slices(k=2)"))
    assert parse_shift("CIFAR-S(clients=1)") == parse_shift("cifar_s(clients=1)")
    assert algorithms.load_algorithm("kNN-Per") is algorithms.load_algorithm("knn_per")
    assert algorithms.load_algorithm("pFedFDA").from_preset("Paper").cov_ridge == 1e-4
    assert (
        models.build_model("MLP", (4,), 2).feature_dim
        == models.build_model("mlp", (4,), 2).feature_dim
    )
    assert data.load_dataset("Digits").name == "digits"
    assert describe_dataset("Tiny-ImageNet", data.data_folder("nowhere"))["name"] == "tiny_imagenet"


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (5, dict, "x must be a section with keys, got 5."),
        (5, tuple[float, ...], "x must be a list of numbers, got 5."),
        ("a", tuple[str, ...], "x must be a list of text values, got 'a'."),
        (
            1.5,
            tuple[int, ...] | int,
            "x must be a list of whole numbers or a whole number, got 1.5.",
        ),
    ],
)
def test_messages_about_types_use_plain_words(value, kind, message):
    with pytest.raises(ConfigError) as caught:
        check_value(value, kind, key="x")
    assert caught.value.message == message
