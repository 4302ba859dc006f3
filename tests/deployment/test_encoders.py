"""Sites with a frozen encoder: the bits of a simulation, and one digest for all."""

import logging

import numpy as np
import pytest

import fedtailor
import tiny_encoders
from fedtailor.core.atomic import to_json
from fedtailor.core.errors import DataError, RunError
from fedtailor.data.embedded_folder import write_embedded
from fedtailor.data.options import DataOptions
from fedtailor.data.own.read import load_own
from fedtailor.experiment.reader import read_run
from marks import quick
from sites import VALUES, World, assert_same_run, write_pictures, write_table

TINY = "tiny_encoders:tiny"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))


def world_of(path, *, site=None, **data):
    """Return a world of pictures of several sizes, in which one site is new."""
    values = {**VALUES, "data": {"encoder": TINY, "image_size": 12, "val_fraction": 0.2, **data}}
    site = {"encoders": [TINY]} if site is None else site
    world = World(path, new=("hospital",), values=values, site=site)
    return world.write(write_pictures)


@pytest.mark.parametrize("normalize", quick(["auto", "l2", "training"], "auto"))
def test_sites_have_the_bits_of_a_simulation(tmp_path, caplog, normalize):
    world = world_of(tmp_path, normalize=normalize)
    with caplog.at_level(logging.INFO, "fedtailor.site"):
        world.serve()

    assert_same_run(world, world.simulate())
    assert sum("the features of" in record.message for record in caplog.records) == 3

    # The model of a site takes pictures.
    folder = tmp_path / "sites" / "clinic"
    model = fedtailor.load(folder / "model").model("clinic")
    picture = next((folder / "data").rglob("*.png"))
    assert model.predict(picture).shape == (1,)
    score = read_run(tmp_path / "server" / "runs" / "0001").result["sites"]["clinic"]["accuracy"]
    assert model.card["scores"]["accuracy"] == score


def test_a_site_runs_no_encoder_that_it_does_not_allow(tmp_path):
    world = world_of(tmp_path, site={})
    words = f"its site.toml does not allow '{TINY}'. Allowed encoders: none"
    with pytest.raises(RunError, match=words):
        world.serve()


def test_cells_of_tables_are_no_inputs_of_an_encoder(tmp_path):
    values = {**VALUES, "data": {"encoder": TINY}}
    world = World(tmp_path, values=values, site={"encoders": [TINY]}).write(write_table)
    with pytest.raises(RunError, match="not cells of tables"):
        world.serve()


def test_another_digest_is_refused_with_both_values(tmp_path, monkeypatch):
    world = world_of(tmp_path)

    class Changed(tiny_encoders.Tiny):
        """The encoder after somebody has changed it."""

    # The server has asked for its digest already when the sites load theirs.
    loaded = []

    def tiny():
        loaded.append(None)
        return (tiny_encoders.Tiny if len(loaded) == 1 else Changed)()

    monkeypatch.setattr(tiny_encoders, "tiny", tiny)
    words = rf"encoder '{TINY}' has the digest \w{{64}} here, and \w{{64}} at the server"
    with pytest.raises(RunError, match=words):
        world.serve()


def embedded(folder, name):
    """Write the pictures of a site, and their features in their place."""
    pictures = folder.parent / f"{name}-pictures"
    write_pictures(pictures, name)
    options = DataOptions(path=str(pictures), image_size=12, encoder=TINY)
    write_embedded(load_own(str(pictures), options), options, folder)


def test_sites_may_bring_features(tmp_path):
    values = {**VALUES, "data": {"val_fraction": 0.2}}
    names = ("hospital", "office", "practice")
    world = World(tmp_path, names=names, values=values, site={"encoders": [TINY]})

    def write(folder, name):
        source = tmp_path / "pictures" / name / "features"
        if not source.exists():
            source.parent.mkdir(parents=True)
            embedded(source, name)

        folder.mkdir(parents=True)
        (folder / "train.npz").write_bytes((source / "train.npz").read_bytes())

    world.write(write)
    world.serve()
    assert_same_run(world, world.simulate())


def test_features_of_two_encoders_are_refused(tmp_path):
    world = World(tmp_path, values=VALUES, site={"encoders": [TINY]})

    def write(folder, name):
        folder.mkdir(parents=True)
        generator = np.random.default_rng(0)
        record = {"target": TINY, "digest": name, "license": "", "inputs": INPUTS}
        np.savez(
            folder / "train.npz",
            x=generator.normal(size=(30, 4)).astype(np.float32),
            y=np.arange(30) % 2,
            encoder=np.array(to_json(record)),
        )

    world.write(write)
    words = "the data of the sites differ in encoder: '.*' has the digest .*, kind images"
    with pytest.raises(DataError, match=words):
        world.serve()


INPUTS = {
    "version": 1,
    "kind": "images",
    "shape": [1, 8, 8],
    "stored": "uint8",
    "white": 255.0,
    "image_size": 0,
    "color": "auto",
    "dataset": "",
    "num_classes": 2,
    "class_names": [],
    "columns": None,
}
