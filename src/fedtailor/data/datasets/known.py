"""The table of known data sets: description, files, license and citation.

Nothing is imported until an entry is used, so that a listing is immediate.
:mod:`fedtailor.data.download.sources` has the downloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class KnownDataset(NamedTuple):
    """A row of the table."""

    target: str
    """``module:function`` within ``fedtailor.data``: ``load(folder: Path) -> Dataset``."""
    description: str
    examples: int
    """Published examples, training and test together; -1: not a fixed number."""
    files: tuple[str, ...] = ()
    """Patterns of the files that may be read, relative to the data folder; empty: no file is
    needed."""
    license: str = "none stated by the authors"
    citation: str = ""
    tested_on: Literal["original", "synthetic"] = "original"
    """Whether the reader was tested on the original files, or on synthetic files only."""
    is_pictures: bool = False
    """Whether an example is a file: its reader takes a second argument, which is told how many have
    been read."""


_MNIST = "LeCun, Bottou, Bengio and Haffner 1998, Gradient-based learning applied to document recognition, IEEE Proc."
_CIFAR = "Krizhevsky 2009, Learning multiple layers of features from tiny images, report, University of Toronto."
_EMNIST = "Cohen, Afshar, Tapson and van Schaik 2017, EMNIST: extending MNIST to handwritten letters, IJCNN."
_SVHN = "Netzer, Wang, Coates, Bissacco, Wu and Ng 2011, Reading digits in natural images, NIPS workshop."
_USPS = "Hull 1994, A database for handwritten text recognition research, IEEE TPAMI."
_GANIN = (
    "Ganin, Ustinova, Ajakan et al. 2016, Domain-adversarial training of neural networks, JMLR."
)
_CIFAR100_FILES = ("cifar-100-python/*", "cifar-100-binary/*")
_DIGIT5_FILES = ("MNIST/raw/*", "SVHN/*.mat", "USPS/*", "SynthDigits/*.mat", "MNIST-M/**/*")


def _emnist(split: str, what: str, examples: int, function: str = "") -> KnownDataset:
    """Return the entry of one split of EMNIST."""
    return KnownDataset(
        f"datasets.emnist:load_{function or split}",
        f"EMNIST {what}, 28x28 pixels",
        examples,
        (f"EMNIST/raw/emnist-{split}-*", f"EMNIST/gzip/emnist-{split}-*"),
        license="public domain (NIST)",
        citation=_EMNIST,
        tested_on="synthetic",
    )


DATASETS: Mapping[str, KnownDataset] = {
    "cifar10": KnownDataset(
        "datasets.cifar:load_cifar10",
        "60,000 color photographs of 32x32 pixels, 10 classes",
        60_000,
        ("cifar-10-batches-py/*", "cifar-10-batches-bin/*"),
        citation=_CIFAR,
    ),
    "cifar100": KnownDataset(
        "datasets.cifar:load_cifar100",
        "60,000 color photographs of 32x32 pixels, 100 classes",
        60_000,
        _CIFAR100_FILES,
        citation=_CIFAR,
    ),
    "cifar100_coarse": KnownDataset(
        "datasets.cifar:load_cifar100_coarse",
        "CIFAR-100 with its 20 superclasses as labels and the 100 classes as subclasses",
        60_000,
        _CIFAR100_FILES,
        citation=_CIFAR,
    ),
    "digit5": KnownDataset(
        "datasets.digit5:load_digit5",
        "five domains of digits: MNIST, SVHN, USPS, SynDigits, MNIST-M, as 32x32 color pixels",
        -1,
        _DIGIT5_FILES,
        citation="composed of the five original data sets; see their citations.",
        tested_on="synthetic",
    ),
    "digits": KnownDataset(
        "datasets.digits:load_digits",
        "1,797 handwritten digits of 8x8 pixels, part of scikit-learn: no download",
        1797,
        license="CC BY 4.0 (UCI Machine Learning Repository)",
        citation="Alpaydin and Kaynak 1998, Optical recognition of handwritten digits, UCI repository.",
    ),
    "emnist_balanced": _emnist(
        "balanced", "balanced: 131,600 digits and letters, 47 classes", 131_600
    ),
    "emnist_byclass": _emnist(
        "byclass", "by class: 814,255 digits and letters, 62 classes", 814_255
    ),
    "emnist_bymerge": _emnist(
        "bymerge", "by merge: 814,255 digits and letters, 47 classes", 814_255
    ),
    "emnist_digits": _emnist("digits", "digits: 280,000 digits, 10 classes", 280_000),
    "emnist_letters": _emnist("letters", "letters: 145,600 letters, 26 classes", 145_600),
    "emnist_letters10": _emnist(
        "letters",
        "letters, the first ten: 56,000 images, standardized (FedCR)",
        56_000,
        "letters10",
    ),
    "emnist_mnist": _emnist("mnist", "of MNIST's size: 70,000 digits, 10 classes", 70_000),
    "fashion_mnist": KnownDataset(
        "datasets.mnist:load_fashion_mnist",
        "70,000 gray pictures of clothes of 28x28 pixels, 10 classes",
        70_000,
        ("FashionMNIST/raw/*",),
        license="MIT (Zalando SE)",
        citation="Xiao, Rasul and Vollgraf 2017, Fashion-MNIST: a novel image dataset for benchmarking machine "
        "learning algorithms, arXiv:1708.07747.",
    ),
    "femnist": KnownDataset(
        "datasets.femnist:load_femnist",
        "handwritten digits and letters of 28x28 pixels by writer (LEAF), 62 classes",
        -1,
        ("femnist/**/train/*.json", "femnist/**/test/*.json"),
        license="BSD 2-Clause (LEAF); public domain (NIST)",
        citation="Caldas, Duddu, Wu, Li, Konečný et al. 2018, LEAF: a benchmark for federated settings, "
        "arXiv:1812.01097.",
        tested_on="synthetic",
    ),
    "mnist": KnownDataset(
        "datasets.mnist:load_mnist",
        "70,000 handwritten digits of 28x28 pixels, 10 classes",
        70_000,
        ("MNIST/raw/*",),
        license="none stated by the authors; usually given as CC BY-SA 3.0",
        citation=_MNIST,
    ),
    "mnist_m": KnownDataset(
        "datasets.mnist_m:load_mnist_m",
        "68,002 digits on photographs, 32x32 color pixels, 10 classes",
        68_002,
        ("MNIST-M/**/*",),
        citation=_GANIN,
        is_pictures=True,
    ),
    "sun397": KnownDataset(
        "datasets.sun397:load_sun397",
        "scenes of 64x64 color pixels: 3 superclasses of 50 categories with 100 pictures each (pFedVEM)",
        15_000,
        ("SUN397/**/*.jpg", "SUN397/**/three_levels.csv"),
        citation="Xiao, Hays, Ehinger, Oliva and Torralba 2010, SUN database: large-scale scene recognition, CVPR.",
        tested_on="synthetic",
        is_pictures=True,
    ),
    "svhn": KnownDataset(
        "datasets.svhn:load_svhn",
        "99,289 house numbers of 32x32 color pixels, 10 classes",
        99_289,
        ("SVHN/train_32x32.mat", "SVHN/test_32x32.mat"),
        license="non-commercial use (authors)",
        citation=_SVHN,
        tested_on="synthetic",
    ),
    "syn_digits": KnownDataset(
        "datasets.svhn:load_syn_digits",
        "488,953 rendered digits of 32x32 color pixels, 10 classes",
        488_953,
        ("SynthDigits/synth_train_32x32.mat", "SynthDigits/synth_test_32x32.mat"),
        citation=_GANIN,
        tested_on="synthetic",
    ),
    "synthetic": KnownDataset(
        "datasets.synthetic:load_synthetic",
        "6,000 examples of Gaussian classes, shifted by domain, with a known best accuracy: no download",
        6_000,
        license="Apache-2.0 (fedtailor)",
        citation="made by fedtailor.",
    ),
    "tiny_imagenet": KnownDataset(
        "datasets.tiny_imagenet:load_tiny_imagenet",
        "110,000 labelled color photographs of 64x64 pixels, 200 classes",
        110_000,
        (
            "tiny-imagenet-200/*.txt",
            "tiny-imagenet-200/train/*/images/*",
            "tiny-imagenet-200/val/*.txt",
            "tiny-imagenet-200/val/images/*",
        ),
        license="ImageNet terms: non-commercial research",
        citation="Le and Yang 2015, Tiny ImageNet visual recognition challenge, Stanford CS 231N.",
        tested_on="synthetic",
        is_pictures=True,
    ),
    "usps": KnownDataset(
        "datasets.usps:load_usps",
        "9,298 handwritten digits of 16x16 pixels from envelopes, 10 classes",
        9_298,
        ("USPS/usps.bz2", "USPS/usps.t.bz2"),
        citation=_USPS,
    ),
}
"""Known data sets by name."""
