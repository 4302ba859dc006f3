"""Small finished runs on three kinds of data: digits, tables, and folders of pictures; and their
test examples."""

import csv

import numpy as np
from PIL import Image

import fedtailor
from fedtailor.data.build import build
from fedtailor.experiment.assembly import assemble

SITES = ("Berlin", "Charité", "Mayo", "Oslo")


def write_tables(folder, rows=40, sites=SITES):
    """Write a table for each site: three numbers, and a label that depends on them."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number, site in enumerate(sites):
        values = generator.normal(10 * number, 2 + number, (rows, 3))
        labels = np.where(values[:, 0] + values[:, 1] > 20 * number, "ill", "well")
        with (folder / f"{site}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "pressure", "label", "sugar"])
            writer.writerows(
                [*row[:2], label, row[2]] for row, label in zip(values, labels, strict=True)
            )


def write_hospital_tables(folder, sites=SITES, rows=50):
    """Write tables as hospitals have them: numbers with empty cells, text, and patients with
    several rows."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(2)
    for number, site in enumerate(sites):
        ages = generator.integers(20, 90, rows).astype(str)
        ages[::7] = ""
        sexes = np.where(generator.random(rows) < 0.5, "female", "male")
        sexes[3::11] = "NA"
        sugar = generator.normal(5 + number, 1, rows).round(2)
        labels = np.where(sugar > 5 + number, "ill", "well")
        patients = [f"P{number}-{row // 2}" for row in range(rows)]
        with (folder / f"{site}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["patient", "age", "sex", "sugar", "diagnosis"])
            writer.writerows(zip(patients, ages, sexes, sugar, labels, strict=True))


def write_pictures(folder, sites=SITES, each=12, size=(14, 12)):
    """Write folders of gray pictures, brighter in one class, in a folder for each site."""
    generator = np.random.default_rng(1)
    for site in sites:
        for label, low in (("bright", 90), ("dark", 0)):
            place = folder / site / label
            place.mkdir(parents=True)
            for number in range(each):
                pixels = generator.integers(low, low + 130, size, dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number:02d}.png")


def settings(algorithm, data, model="", seed=0, **sections):
    """Return the configuration of a run of one round."""
    return fedtailor.make_config(
        {
            "seed": seed,
            "algorithm": {"name": algorithm},
            "data": data,
            "model": {"name": model} if model else {},
            "training": {"epochs": 1, "lr": 0.05},
            "federation": {"rounds": 1},
            "engine": {"name": "reference"},
            "evaluation": {"baselines": "none"},
            **sections,
        }
    )


def data_of(kind, folder):
    """Return the options of the data of a kind, and write the data if it is own data."""
    if kind == "digits":
        return {"clients": 4, "fraction": 0.2, "val_fraction": 0.2}
    if kind == "tables":
        if not (folder / "tables").exists():
            write_tables(folder / "tables")
        return {"path": str(folder / "tables"), "val_fraction": 0.1}
    if kind == "hospital_tables":
        if not (folder / "hospital_tables").exists():
            write_hospital_tables(folder / "hospital_tables")
        return {"path": str(folder / "hospital_tables"), "group": "patient", "val_fraction": 0.1}
    if not (folder / "pictures").exists():
        write_pictures(folder / "pictures")
    return {"path": str(folder / "pictures"), "image_size": 12, "val_fraction": 0.1}


def make_run(algorithm, kind, folder, model="", **sections):
    """Run a method on data of a kind; return the loaded run, and the test examples of its clients
    with their labels."""
    config = settings(algorithm, data_of(kind, folder), model, **sections)
    out = folder / f"{algorithm}-{kind}-{model or 'default'}".replace(":", "-")
    if not out.exists():
        fedtailor.run(config, out=out)
    return fedtailor.load(out), test_examples(config)


def test_examples(config):
    """Return (examples as stored, names of their classes) of every client."""
    divided = build(config.data, run_seed=config.seeds[0])
    dataset = divided.dataset
    names = np.array(dataset.class_names or range(dataset.num_classes))
    return [(dataset.x[rows.test], names[dataset.y[rows.test]]) for rows in divided.positions]


test_examples.__test__ = False


def parts_of(config):
    """Return everything that a run of a configuration is made of."""
    return assemble(config, config.seeds[0])
