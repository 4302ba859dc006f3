"""Synthetic files of the known data sets, in the layouts of the originals."""

import bz2
import gzip
import io
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from PIL import Image

TRAIN = 5
TEST = 3


def idx_bytes(array: np.ndarray) -> bytes:
    """Return the bytes of an IDX file of unsigned bytes."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def random_images(generator: np.random.Generator, rows: int, *shape: int) -> np.ndarray:
    return generator.integers(0, 256, (rows, *shape), dtype=np.uint8)


def write_idx(
    folder: Path, generator: np.random.Generator, pattern: str, *, classes: int = 10, first: int = 0
) -> list[np.ndarray]:
    """Write images and labels of both parts; ``pattern`` has places for part and content."""
    arrays = []
    is_emnist = "emnist" in pattern
    for part, rows in (("train", TRAIN), ("test" if is_emnist else "t10k", TEST)):
        contents = {
            "images-idx3": random_images(generator, rows, 28, 28),
            "labels-idx1": np.arange(rows) * 3 % classes + first,
        }
        for content, array in contents.items():
            arrays.append(array)
            path = folder / pattern.format(part, content)
            path.parent.mkdir(parents=True, exist_ok=True)
            raw = idx_bytes(array)
            path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)

    return arrays


def write_mnist(folder: Path, generator: np.random.Generator) -> list[np.ndarray]:
    return write_idx(folder, generator, "MNIST/raw/{}-{}-ubyte")


def write_usps(folder: Path, generator: np.random.Generator) -> list[str]:
    """Write the two files, and return the lines of the first."""
    lines: list[str] = []
    (folder / "USPS").mkdir(exist_ok=True)
    for file, rows in (("usps.t.bz2", TEST), ("usps.bz2", TRAIN)):
        lines = []
        for row in range(rows):
            values = generator.integers(-1000, 1001, 256) / 1000
            pairs = " ".join(f"{index}:{value:g}" for index, value in enumerate(values, 1))
            lines.append(f"{row + 1} {pairs} ")
        (folder / "USPS" / file).write_bytes(bz2.compress("\n".join([*lines, ""]).encode()))

    return lines


def mat_bytes(variables: dict[str, object], *, compressed: bool = True) -> bytes:
    """Return a MATLAB file as SciPy writes it."""
    stream = io.BytesIO()
    scipy.io.savemat(stream, variables, do_compression=compressed)
    return stream.getvalue()


def write_mat(
    folder: Path, generator: np.random.Generator, pattern: str, *, compressed: bool = True
) -> dict[str, Any]:
    """Write the two files of SVHN or SynDigits, and return the variables of the first."""
    variables: dict[str, Any] = {}
    for part, rows in (("test", TEST), ("train", TRAIN)):
        variables = {
            "X": random_images(generator, rows, 32, 32, 3).transpose(1, 2, 3, 0),
            "y": np.arange(10, 10 - rows, -1, dtype=np.uint8)[:, None],
        }
        path = folder / pattern.format(part)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(mat_bytes(dict(variables), compressed=compressed))

    return variables


def write_svhn(folder: Path, generator: np.random.Generator) -> dict[str, Any]:
    return write_mat(folder, generator, "SVHN/{}_32x32.mat")


def write_syn_digits(folder: Path, generator: np.random.Generator) -> dict[str, Any]:
    return write_mat(folder, generator, "SynthDigits/synth_{}_32x32.mat", compressed=False)


def write_mnist_m(folder: Path, generator: np.random.Generator) -> list[np.ndarray]:
    """Write the four arrays of MNIST-M."""
    arrays = []
    (folder / "MNIST-M").mkdir(exist_ok=True)
    for part, rows in (("train", TRAIN), ("test", TEST)):
        contents = {
            "images": random_images(generator, rows, 32, 32, 3),
            "labels": np.arange(rows, dtype=np.uint8),
        }
        for content, array in contents.items():
            arrays.append(array)
            np.save(folder / f"MNIST-M/{part}_{content}.npy", array)

    return arrays


def write_mnist_m_pictures(folder: Path, arrays: list[np.ndarray]) -> None:
    """Write arrays of MNIST-M as the original release."""
    for part, images, labels in (("train", *arrays[:2]), ("test", *arrays[2:])):
        place = folder / f"MNIST-M/mnist_m_{part}"
        place.mkdir(parents=True)
        lines = []
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            Image.fromarray(image).save(place / f"{row:08}.png")
            lines.append(f"{row:08}.png {label}\n")
        place.with_name(f"{place.name}_labels.txt").write_text("".join(lines))


def write_cifar10(
    folder: Path, generator: np.random.Generator, *, protocol: int = 2
) -> list[dict[str, Any]]:
    """Write the six batches of CIFAR-10 as pickles, and return their contents."""
    batches = []
    place = folder / "cifar-10-batches-py"
    place.mkdir()
    for name in (*(f"data_batch_{part}" for part in range(1, 6)), "test_batch"):
        labels = [1, 9, 3]
        batch = {"labels": labels, "data": random_images(generator, 3, 3072), "batch_label": name}
        (place / name).write_bytes(pickle.dumps(batch, protocol=protocol))
        batches.append(batch)

    return batches


def write_cifar100(folder: Path, generator: np.random.Generator) -> None:
    """Write CIFAR-100 as pickles."""
    for name in ("train", "test"):
        batch = {
            "coarse_labels": [4, 1, 19],
            "fine_labels": [0, 1, 89],
            "data": random_images(generator, 3, 3072),
        }
        path = folder / "cifar-100-python" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps(batch))


def leaf(**writers: tuple[list[float], list[int]]) -> dict[str, Any]:
    """Return a file of LEAF with images of one value each, by writer."""
    entries = {}
    for name, (values, labels) in writers.items():
        entries[name] = {"x": [[value] * 784 for value in values], "y": labels}

    counts = [len(entry["y"]) for entry in entries.values()]
    return {"users": list(writers), "num_samples": counts, "user_data": entries}


def write_femnist(folder: Path, _: object = None) -> None:
    """Write three files whose names sort otherwise than their numbers."""
    files = {
        "train/all_data_10.json": leaf(late=([1.0], [61])),
        "train/all_data_2.json": leaf(b=([0, 0.5], [3, 36]), a=([64 / 255], [10])),
        "test/all_data_2.json": leaf(a=([1], [10]), new=([0.999], [0]), b=([], [])),
    }
    for place, content in files.items():
        path = folder / "femnist" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


def write_shakespeare(folder: Path, _: object = None) -> None:
    """Write two roles, one of which has examples in both parts."""
    play = "What's in a name? That which we call a rose by any other name would smell as sweet[]"
    texts = {"x": [play[:80], "~" * 80], "y": ["e", "\n"]}
    parts = {
        "train": {"JULIET": texts, "ROMEO": {"x": [play[4:]], "y": ["}"]}},
        "test": {"JULIET": {"x": [play[1:81]], "y": ["~"]}, "ROMEO": {"x": [], "y": []}},
    }
    for part, roles in parts.items():
        # As LEAF: texts that overlap with training are counted, and so are not the shortest roles.
        counts = [len(entry["y"]) + 79 for entry in roles.values()]
        entries = {**roles, "PAGE": {"x": [], "y": []}}
        content = {"users": list(roles), "num_samples": counts, "user_data": entries}
        path = folder / "shakespeare" / part / f"all_data_{part}_9.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


def save_picture(path: Path, color: tuple[int, ...], size: tuple[int, int] = (64, 64)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB" if len(color) == 3 else "L", size, color).save(path, "JPEG", quality=95)


def write_tiny_imagenet(folder: Path, _: object = None) -> None:
    """Write three classes, two training pictures of each and two of test."""
    place = folder / "tiny-imagenet-200"
    classes = {"n02124075": "Egyptian cat", "n01443537": "goldfish", "n04067472": "reel"}
    for number, wnid in enumerate(classes):
        for picture in (0, 10):
            path = place / f"train/{wnid}/images/{wnid}_{picture}.JPEG"
            save_picture(path, (60 * number, picture, 200))

    save_picture(place / "val/images/val_0.JPEG", (77,))
    save_picture(place / "val/images/val_1.JPEG", (250, 5, 5))
    (place / "val/val_annotations.txt").write_text(
        "val_1.JPEG\tn01443537\t0\t32\t44\t62\nval_0.JPEG\tn04067472\t52\t55\t57\t59\n"
    )
    (place / "wnids.txt").write_text("\n".join(classes))
    (place / "words.txt").write_text("".join(f"{wnid}\t{classes[wnid]}\n" for wnid in classes))


# Ambiguous categories are left out; a quoted cell, a trailing slash and more columns are in use.
HIERARCHY = ""","Which type of scene
is in the image?",,,
category,indoor,"outdoor, natural","outdoor, man-made","water, ice, snow"
/a/abbey,0,0,1,0
'/a/airplane_cabin/',1,0,0,0
/b/badlands,0,1,0,0
/c/cottage_garden,0,1,1,0
/c/church/indoor,1,0,0,0
"""


def write_sun397(folder: Path, _: object = None) -> None:
    """Write five categories with five pictures each, of which one color tells the category."""
    names = ["a/abbey", "a/airplane_cabin", "b/badlands", "c/cottage_garden", "c/church/indoor"]
    for number, name in enumerate(names):
        for picture in range(5):
            path = folder / "SUN397" / name / f"sun_{picture}.jpg"
            save_picture(path, (40 * number, 10 * picture, 0), (70, 90))

    (folder / "SUN397/three_levels.csv").write_text(HIERARCHY)


def medmnist(generator: np.random.Generator, *, channels: int) -> dict[str, np.ndarray]:
    """Return the arrays of an archive of MedMNIST with two classes."""
    arrays = {}
    shape = (28, 28, channels) if channels > 1 else (28, 28)
    for part, rows in (("train", TRAIN), ("val", 2), ("test", TEST)):
        arrays[f"{part}_images"] = random_images(generator, rows, *shape)
        arrays[f"{part}_labels"] = (np.arange(rows) % 2).astype(np.uint8)[:, None]

    return arrays


def write_bloodmnist(folder: Path, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Write a data set in color, in the folder of the package."""
    arrays = medmnist(generator, channels=3)
    (folder / "MedMNIST").mkdir(exist_ok=True)
    np.savez_compressed(folder / "MedMNIST/bloodmnist.npz", **arrays)
    return arrays


def write_breastmnist(folder: Path, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Write a gray data set where a user may have put it."""
    arrays = medmnist(generator, channels=1)
    np.savez(folder / "breastmnist.npz", **arrays)
    return arrays


PATIENT = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n"


def write_heart(folder: Path, _: object = None) -> None:
    """Write two patients of each hospital, the second one with cells that say nothing."""
    sites = ("cleveland", "hungarian", "switzerland", "va")
    (folder / "heart").mkdir(exist_ok=True)
    for number, site in enumerate(sites, 1):
        second = f"5{number},0,4,0,0,?,-9,120,1,-.5,?,?,?,{number}\n"
        (folder / f"heart/processed.{site}.data").write_text(PATIENT + second)


HAR_PEOPLE = {"train": [3, 3, 3, 1, 1], "test": [2, 2, 2]}
HAR_ACTIVITIES = {"train": [5, 5, 1, 6, 6], "test": [2, 2, 3]}


def write_har(folder: Path, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Write five windows of two people and three of another one; return the features by part."""
    windows = {}
    for part, people in HAR_PEOPLE.items():
        place = folder / "UCI HAR Dataset" / part
        place.mkdir(parents=True, exist_ok=True)
        windows[part] = generator.uniform(-1, 1, (len(people), 561)).astype(np.float32)
        np.savetxt(place / f"X_{part}.txt", windows[part], fmt=" %.9e")
        np.savetxt(place / f"y_{part}.txt", HAR_ACTIVITIES[part], fmt="%d")
        np.savetxt(place / f"subject_{part}.txt", people, fmt="%d")

    return windows
