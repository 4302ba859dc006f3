"""The experiments of the papers: every cell is a valid configuration, and printed numbers are where
they belong."""

from functools import cache
from pathlib import Path

import pytest

from fedtailor.algorithms import ALGORITHMS
from fedtailor.core.errors import ConfigError
from fedtailor.data.datasets.known import DATASETS
from fedtailor.experiment.assembly import make_algorithm
from fedtailor.experiment.config import make_config
from fedtailor.models import MODELS, build_model
from fedtailor.papers.tables import (
    cells,
    expand,
    experiments_folder,
    load_paper,
    missing,
    paper_names,
)

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
NAMES = ["fedcr", "fedlda", "pfedfda", "pfedvem"]
SHAPES = {"fashion_mnist": (1, 28, 28), "emnist_letters10": (1, 28, 28), "femnist": (1, 28, 28)}
SHAPES |= {"tiny_imagenet": (3, 64, 64), "sun397": (3, 64, 64)}
CLASSES = {"cifar100": 100, "cifar100_coarse": 20, "femnist": 62, "tiny_imagenet": 200, "sun397": 3}
BASELINES: set[str] = set()
"""Names that algorithms will have that do not exist yet."""

SMALL = """
[paper]
title = "Small"
authors = "Nobody"
venue = "Nowhere"
year = 2024

[base]
inferred = ["training.lr"]
training = {lr = 0.1, epochs = 1}

[columns.a]
label = "A"
data = {clients = 3}

[columns.b]
label = "B"
inferred = ["data.clients"]
data = {clients = 4}
training = {lr = 0.2}

[methods.fedavg]
label = "FedAvg"
point = "global"
algorithm = {name = "fedavg"}

[methods.fedavg.columns.b]
training = {epochs = 2}

[methods.tuned]
label = "FineTuned"
point = "personalized"
algorithm = {name = "fedavg_ft"}

[tables.1]
title = "All"
columns = ["a", "b"]
unit = "percent"

[tables.1.reference]
fedavg = [50.0, nan]
tuned = [60.5, 61]

[tables.2]
title = "Some"
columns = ["b"]

[tables.2.reference]
fedavg = [0.5]
"""


@cache
def paper(name):
    return load_paper(name, FOLDER)


@cache
def all_cells(name):
    return [cell for table in paper(name).tables for cell in cells(paper(name), table)]


def small(tmp_path, text=SMALL):
    (tmp_path / "small").mkdir(exist_ok=True)
    (tmp_path / "small" / "paper.toml").write_text(text)
    return load_paper("small", tmp_path)


@cache
def configurations(name):
    """Return every cell of a paper with its configuration."""
    return [(cell, make_config(cell.values)) for cell in all_cells(name)]


def test_the_papers_are_there():
    assert paper_names(FOLDER) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_a_valid_configuration(name):
    for _, config in configurations(name):
        assert config.data.partition and config.data.dataset in DATASETS
        assert (config.algorithm.name in ALGORITHMS) != (config.algorithm.name in BASELINES), (
            config.algorithm.name
        )


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_that_exists_takes_its_options(name):
    for cell, config in configurations(name):
        if cell.values["algorithm"]["name"] in ALGORITHMS:
            algorithm = make_algorithm(config)
            assert algorithm.training.batch_size == cell.values["training"]["batch_size"]


@pytest.mark.parametrize("name", NAMES)
def test_every_model_that_exists_can_be_built(name):
    built = {}
    for cell, config in configurations(name):
        dataset = cell.values["data"]["dataset"]
        model = config.model
        shape = SHAPES.get(dataset, (3, 32, 32))
        classes = CLASSES.get(dataset, 10)
        built[model.name, str(model.options), shape, classes] = model
    for (_, _, shape, classes), model in built.items():
        assert model.name in {*MODELS, "lenet", "cnn6", "resnet18_gn", "wideresnet16"}
        if model.name in MODELS:
            build_model(model.name, shape, classes, model.options)


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        (("pfedfda", "1", "cifar10_s_25", "pfedfda"), {"accuracy": 0.595}),
        (("pfedfda", "1", "cifar10_s_25", "fedavg_ft"), {"accuracy": 0.526}),
        (("pfedfda", "1", "cifar100_s_50", "fedpac"), {"accuracy": 0.283}),
        (("pfedfda", "2", "emnist_writers", "local"), {"accuracy": 0.242}),
        (("pfedfda", "2", "cifar10_dir05", "pfedfda"), {"accuracy": 0.763}),
        (("pfedfda", "3", "cifar100_scarce", "pfedfda"), {"accuracy": 0.499}),
        (
            ("pfedfda", "4", "cifar10_new_clients", "pfedfda"),
            {"original": 0.738, "frost": 0.695, "contrast": 0.689},
        ),
        (("pfedfda", "5", "cifar100_dir01_25", "pfedfda_mb"), {"accuracy": 0.423}),
        (("pfedfda", "7", "digit5_25", "pfedfda"), {"accuracy": 0.8654}),
        (("fedcr", "2", "fmnist_2", "fedcr"), {"accuracy": 0.93}),
        (("fedcr", "10", "cifar10_2", "fedavg"), {"accuracy": 0.7626}),
        (("fedcr", "3", "cifar100_1", "fedcr_8"), {"accuracy": 0.4137}),
        (("fedcr", "9", "cifar100_1_20", "fedcr_private"), {"accuracy": 0.3716}),
        (("pfedvem", "1", "cifar10_100", "pfedvem"), {"PM": 0.719, "GM": 0.601}),
        (("pfedvem", "1", "sun397_200", "fedavg"), {"GM": 0.727}),
        (("pfedvem", "2", "cifar100_50_homo", "pfedvem_uncertainty"), {"PM": 0.492}),
        (("pfedvem", "3", "cifar100_50_equal", "pfedvem_deviation"), {"PM": 0.604}),
        (("pfedvem", "5", "cifar100_100", "pfedvem"), {"PM_smallest": 0.508, "PM": 0.562}),
        (("pfedvem", "6", "cifar10_100_5000", "pfedvem"), {"PM": 0.571, "GM": 0.457}),
        (("pfedvem", "7", "digit5_100", "pfedvem"), {"PM": 0.911, "GM": 0.871}),
        (("fedlda", "1", "cifar10_resnet18_1500", "fedlda"), {"accuracy": 0.8196}),
        (("fedlda", "1", "cifar10_wrn_all", "fedlda"), {"accuracy": 0.9038}),
        (("fedlda", "2", "fmnist_wrn_500", "fedpac"), {"accuracy": 0.655}),
        (("fedlda", "small", "cifar10_cnn_500", "fedlda"), {"accuracy": None}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_printed_numbers(where, numbers):
    name, *rest = where
    found = {reading.name: reading.reference for reading in expand(paper(name), *rest).readings}
    assert found | numbers == found


def test_tables_have_as_many_numbers_as_printed():
    counts = {
        (name, table): sum(
            reading.reference is not None
            for cell in cells(paper(name), table)
            for reading in cell.readings
        )
        for name in NAMES
        for table in paper(name).tables
    }
    assert counts == {
        **{
            ("pfedfda", table): count
            for table, count in zip("123457", (96, 84, 16, 60, 18, 24), strict=True)
        },
        ("pfedfda", "variants"): 0,
        ("pfedfda", "scarce"): 0,
        ("pfedvem", "grid"): 0,
        ("pfedvem", "full"): 0,
        **{
            ("fedcr", table): count
            for table, count in {"2": 80, "3": 36, "9": 12, "10": 80, "short": 0}.items()
        },
        **{
            ("pfedvem", table): count
            for table, count in zip("123567", (168, 4, 4, 24, 42, 21), strict=True)
        },
        **{("fedlda", table): count for table, count in {"1": 70, "2": 42, "small": 0}.items()},
    }


def test_protocols():
    cell = expand(paper("pfedfda"), "1", "cifar10_s_25", "local", seed=3)
    config = make_config(cell.values)
    assert config.seeds == (3,) and config.training.drop_last and config.data.fraction == 0.25
    assert config.algorithm.name == "local" and config.schedule.train == "cohort"
    vem = expand(paper("pfedvem"), "1", "cifar100_50", "pfedvem")
    config = make_config(vem.values)
    assert (config.data.seed, config.schedule.participation.min_clients, config.data.test) == (
        "run",
        2,
        "by_subclass",
    )
    others = [
        make_config(expand(paper("pfedvem"), "1", "cifar100_50", name).values)
        for name in ("fedrep", "ifca")
    ]
    assert [config.schedule.train, *(one.schedule.train for one in others)] == [
        "auto",
        "all",
        "auto",
    ]
    assert (
        config.algorithm.options["head_steps"] == 20
        and not config.schedule.participation.full_last_round
    )
    assert [(each.name, each.score.point) for each in vem.readings] == [
        ("PM", "local"),
        ("GM", "global_complete"),
    ]
    new = expand(paper("pfedfda"), "4", "cifar10_new_clients", "fedavg")
    assert [each.score.point for each in new.readings[:2]] == ["global", "global"]
    assert (new.readings[2].score.clients, new.readings[2].score.condition) == (
        "new",
        "motion_blur-3",
    )
    cr = make_config(expand(paper("fedcr"), "2", "cifar100_2", "fedcr").values)
    assert (cr.algorithm.options["beta"], cr.algorithm.options["latent_dim"], cr.training.lr) == (
        1e-3,
        512,
        0.05,
    )
    assert cr.data.test_share == 0.3 and cr.training.crop_padding == 4


@pytest.mark.parametrize(
    ("where", "point", "is_stated"),
    [
        (("pfedfda", "2", "cifar10_dir01", "fedpac"), "local", False),
        (("fedlda", "1", "cifar10_wrn_500", "fedpac"), "personalized", False),
        (("fedlda", "1", "cifar10_wrn_500", "fedlda"), "local", False),
        (
            ("fedcr", "2", "fmnist_1", "fedpac"),
            "personalized",
            True,
        ),  # after ten epochs of the head
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_a_paper_that_does_not_say_when_it_scored_has_an_inferred_point(where, point, is_stated):
    name, *rest = where
    cell = expand(paper(name), *rest)
    assert [reading.score.point for reading in cell.readings] == [point]
    assert ("point" not in cell.inferred) == is_stated


def test_new_clients_of_a_method_that_is_scored_after_local_training_are_scored_personalized():
    """They do not train in a round, so no result has a number of theirs at `local`."""
    readings = expand(paper("pfedfda"), "4", "cifar10_new_clients", "fedpac").readings
    points = {(reading.score.clients, reading.score.point) for reading in readings}
    assert points == {("known", "local"), ("new", "personalized")}


def test_equal_settings_of_two_tables_have_one_digest():
    tables = [
        expand(paper("pfedfda"), *where, "pfedfda")
        for where in (("1", "cifar100_s_100"), ("5", "cifar100_s_100"))
    ]
    assert tables[0].digest == tables[1].digest
    assert expand(paper("pfedvem"), "6", "cifar10_100", "fedavg").digest == (
        expand(paper("pfedvem"), "1", "cifar10_100", "fedavg", seed=4).digest
    )
    assert tables[0].digest != expand(paper("pfedfda"), "1", "cifar100_s_75", "pfedfda").digest


def test_a_stated_value_is_no_longer_inferred(tmp_path):
    found = small(tmp_path)
    assert expand(found, "1", "a", "fedavg").inferred == ("training.lr",)
    cell = expand(found, "1", "b", "fedavg")
    assert cell.inferred == ("data.clients",)
    assert cell.values["training"] == {"lr": 0.2, "epochs": 2}
    assert expand(found, "1", "b", "tuned").values["training"]["epochs"] == 1
    assert expand(found, "1", "b", "tuned").readings[0].reference == 0.61
    assert expand(found, "1", "b", "fedavg").readings[0].reference is None


def test_the_point_can_be_inferred_and_is_no_setting_of_a_run(tmp_path):
    stated = expand(small(tmp_path), "1", "b", "tuned")
    text = SMALL.replace('point = "personalized"', 'point = "local"\ninferred = ["point"]')
    changed = expand(small(tmp_path, text), "1", "b", "tuned")
    assert changed.inferred == ("data.clients", "point") and stated.inferred == ("data.clients",)
    assert [cell.readings[0].score.point for cell in (stated, changed)] == ["personalized", "local"]
    assert changed.digest == stated.digest
    assert "point" not in expand(small(tmp_path, text), "1", "b", "fedavg").inferred


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("3", "a", "tuned"), "unknown table of small '3'. Known: 1, 2."),
        (("1", "c", "tuned"), "unknown column of table 1 'c'"),
        (("2", "a", "fedavg"), "unknown column of table 2 'a'"),
        (("1", "a", "fedavgg"), "did you mean 'fedavg'?"),
        (("2", "b", "tuned"), "unknown method of table 2 'tuned'"),
    ],
)
def test_unknown_names(arguments, message, tmp_path):
    with pytest.raises(ConfigError) as caught:
        expand(small(tmp_path), *arguments)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Small"\n', "", "[paper] needs 'title'"),
        ("year = 2024", "yaer = 2024", "did you mean 'year'?"),
        ("year = 2024", 'year = "2024"', "paper.year must be a whole number"),
        ('point = "global"', 'point = "globl"', "methods.fedavg.point must be one of"),
        (
            '["training.lr"]',
            '["training.lrr"]',
            "inferred names 'training.lrr', which nothing sets",
        ),
        ('["training.lr"]', '["point"]', "inferred names 'point', which nothing sets"),
        ("[tables.2]", "[tabels.2]", "unknown section 'tabels'; did you mean 'tables'?"),
        ('columns = ["b"]', 'columns = ["c"]', "unknown column 'c'"),
        ("[methods.fedavg.columns.b]", "[methods.fedavg.columns.c]", "unknown column 'c'"),
        ("fedavg = [0.5]", "fedavgg = [0.5]", "did you mean 'fedavg'?"),
        ("fedavg = [0.5]", "fedavg = [0.5, 0.6]", "a list of 1 numbers, one for each column"),
        ("fedavg = [0.5]", "fedavg = [true]", "a list of 1 numbers"),
        ("fedavg = [0.5]", "fedavg = {PM = [0.5]}", "unknown score 'PM'"),
        ("fedavg = [0.5]", "fedavg = 0.5", "a list of 1 numbers"),
        ("data = {clients = 3}", "data = 3", "columns.a.data must be a section with keys"),
        ("[columns.a]", "[columns.a", "is not valid TOML"),
    ],
)
def test_mistakes_in_a_file(old, new, message, tmp_path):
    assert old in SMALL
    with pytest.raises(ConfigError) as caught:
        small(tmp_path, SMALL.replace(old, new))
    assert message in caught.value.message and "paper.toml" in caught.value.message


def test_what_is_missing(tmp_path):
    cell = expand(small(tmp_path, SMALL.replace('"fedavg_ft"', '"new_one"')), "1", "a", "tuned")
    assert missing(cell, {"digits": "included"}) == ["algorithm new_one: not available yet"]
    (sentence,) = missing(expand(cell.paper, "1", "a", "fedavg"), {"digits": "absent"})
    assert sentence == "data set digits is absent: fedtailor data fetch digits"


def test_an_unknown_paper(tmp_path):
    small(tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        load_paper("smal", tmp_path)


def test_the_folder_here_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert experiments_folder() == FOLDER
    (tmp_path / "experiments").mkdir()
    assert experiments_folder() == FOLDER
    small(tmp_path / "experiments")
    assert paper_names() == ["small"]
