"""MedMNIST: medical images of 28x28 pixels, one NumPy archive for each of eleven data sets.

An archive has ``train_images``, ``val_images`` and ``test_images``, bytes (rows, 28, 28) or, in
color, (rows, 28, 28, 3), and ``train_labels``, ``val_labels`` and ``test_labels``, whole numbers
(rows, 1). Yang, Shi, Wei et al. 2023, "MedMNIST v2: a large-scale lightweight benchmark for 2D and
3D biomedical image classification", Scientific Data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedtailor.data.dataset import Dataset, check_labels
from fedtailor.data.datasets.parts import ImagePart, join_parts
from fedtailor.data.files import MAX_BYTES, Files, check_count, wrong_content
from fedtailor.data.own.archives import read_archive
from fedtailor.data.own.findings import Unusable

_PARTS = ("train", "val", "test")
_ARRAYS = [f"{part}_{content}" for part in _PARTS for content in ("images", "labels")]
_SIDE = 28

_ORGANS = (
    "bladder, femur-left, femur-right, heart, kidney-left, kidney-right, liver, lung-left, "
    "lung-right, pancreas, spleen"
)
_CLASSES: Mapping[str, str] = {
    "bloodmnist": (
        "basophil, eosinophil, erythroblast, immature granulocyte, lymphocyte, monocyte, "
        "neutrophil, platelet"
    ),
    "breastmnist": "malignant, normal or benign",
    "dermamnist": (
        "actinic keratosis, basal cell carcinoma, benign keratosis, dermatofibroma, melanoma, "
        "melanocytic nevus, vascular lesion"
    ),
    "octmnist": "choroidal neovascularization, diabetic macular edema, drusen, normal",
    "organamnist": _ORGANS,
    "organcmnist": _ORGANS,
    "organsmnist": _ORGANS,
    "pathmnist": (
        "adipose, background, debris, lymphocytes, mucus, smooth muscle, normal colon mucosa, "
        "cancer-associated stroma, colorectal adenocarcinoma epithelium"
    ),
    "pneumoniamnist": "normal, pneumonia",
    "retinamnist": "grade 0, grade 1, grade 2, grade 3, grade 4",
    "tissuemnist": (
        "collecting duct, distal convoluted tubule, glomerular endothelial cells, interstitial "
        "endothelial cells, leukocytes, podocytes, proximal tubule segments, thick ascending limb"
    ),
}
"""Names of classes by data set."""

_COLOR = ("bloodmnist", "dermamnist", "pathmnist", "retinamnist")


def load(files: Files) -> Dataset:
    """Load a data set from MedMNIST/NAME.npz.

    The official training part is the training part of the archive, followed by its validation part.

    Raises:
        DataError: the file is missing or damaged.
    """
    path = files.find(f"MedMNIST/{files.dataset}.npz", f"{files.dataset}.npz")
    try:
        arrays, _ = read_archive(files.read(path), _ARRAYS, limit=MAX_BYTES)
    except Unusable as error:
        raise wrong_content(path, f"the arrays {', '.join(_ARRAYS)}", error) from error

    classes = _CLASSES[files.dataset].split(", ")
    channels = 3 if files.dataset in _COLOR else 1

    parts = []
    for part in _PARTS:
        images = _images(path, f"{part}_images", arrays, channels)
        labels = _labels(path, f"{part}_labels", arrays, len(classes))
        check_count(path, labels, images)
        parts.append(ImagePart(images, labels))

    return join_parts(files, parts, classes)


def _images(path: Path, name: str, arrays: Mapping[str, np.ndarray], channels: int) -> np.ndarray:
    """Return the images of a part (rows, 28, 28, channels)."""
    images = arrays[name]
    shape = (_SIDE, _SIDE, channels) if channels > 1 else (_SIDE, _SIDE)
    if images.dtype != np.uint8 or images.shape[1:] != shape or not len(images):
        allowed = f"'{name}' as bytes (rows, {', '.join(map(str, shape))})"
        raise wrong_content(path, allowed, f"{images.dtype} {images.shape}")

    return images.reshape(-1, _SIDE, _SIDE, channels)


def _labels(
    path: Path, name: str, arrays: Mapping[str, np.ndarray], num_classes: int
) -> np.ndarray:
    """Return the labels of a part (rows,)."""
    labels = arrays[name]
    if labels.ndim != 2 or labels.shape[1] != 1:
        raise wrong_content(path, f"'{name}' of shape (rows, 1)", f"shape {labels.shape}")

    return check_labels(labels[:, 0], num_classes, where=f"{path}, '{name}'")
