"""The table of sources: the published files of known data sets, with their checksums.

Most authors, and torchvision, give an MD5; the table has a SHA-256 where it is known. Both detect
damage; only SHA-256 detects a deliberate change. Addresses and checksums are from torchvision 0.2x
(``torchvision/datasets``) and the authors' pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class Download(NamedTuple):
    """One published file."""

    url: str
    path: str
    """Destination, relative to the data folder."""
    checksum: str
    """``sha256:`` or ``md5:`` and hexadecimal digits."""
    size: int = 0
    """Bytes; 0: unknown."""
    unpack: Literal["", "tar", "zip"] = ""
    """Kind of archive, which is removed after unpacking; empty: the file is used as it is."""
    into: str = "."
    """Folder in which an archive is unpacked, relative to the data folder."""
    strip: str = ""
    """Leading folder to remove from the names in an archive."""
    unpacked: int = 0
    """Approximate bytes of the unpacked files; more than twice as many are refused."""
    gives: tuple[str, ...] = ()
    """Files of an archive, relative to the data folder, that are moved into place last: if they
    exist, all do."""


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_USPS = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"
_SVHN = "http://ufldl.stanford.edu/housenumbers"
_TORONTO = "https://www.cs.toronto.edu/~kriz"


def _idx(url: str, folder: str, files: Mapping[str, tuple[str, int]]) -> tuple[Download, ...]:
    """Return the four files of MNIST or Fashion-MNIST, which stay compressed."""
    return tuple(
        Download(
            f"{url}/{file}-ubyte.gz", f"{folder}/raw/{file}-ubyte.gz", f"sha256:{checksum}", size
        )
        for file, (checksum, size) in files.items()
    )


def _emnist(split: str) -> tuple[Download, ...]:
    """Return the archive with all splits of EMNIST, fetched for one of them."""
    names = [
        f"{part}-{what}" for part in ("train", "test") for what in ("images-idx3", "labels-idx1")
    ]
    return (
        Download(
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "EMNIST/raw/gzip.zip",
            "sha256:fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
            561_753_746,
            unpack="zip",
            into="EMNIST/raw",
            strip="gzip",
            unpacked=570_000_000,
            gives=tuple(f"EMNIST/raw/emnist-{split}-{name}-ubyte.gz" for name in names),
        ),
    )


_MNIST_FILES = _idx(
    _MNIST,
    "MNIST",
    {
        "train-images-idx3": (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            9_912_422,
        ),
        "train-labels-idx1": (
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            28_881,
        ),
        "t10k-images-idx3": (
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            1_648_877,
        ),
        "t10k-labels-idx1": (
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            4_542,
        ),
    },
)
_SVHN_FILES = (
    Download(
        f"{_SVHN}/train_32x32.mat",
        "SVHN/train_32x32.mat",
        "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        182_040_794,
    ),
    Download(
        f"{_SVHN}/test_32x32.mat",
        "SVHN/test_32x32.mat",
        "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        64_275_384,
    ),
)
_USPS_FILES = (
    Download(f"{_USPS}/usps.bz2", "USPS/usps.bz2", "md5:ec16c51db3855ca6c91edd34d0e9b197"),
    Download(f"{_USPS}/usps.t.bz2", "USPS/usps.t.bz2", "md5:8ea070ee2aca1ac39742fdd1ef5ed118"),
)
_CIFAR100_FILES = (
    Download(
        f"{_TORONTO}/cifar-100-python.tar.gz",
        "cifar-100-python.tar.gz",
        "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        169_001_437,
        unpack="tar",
        unpacked=187_000_000,
        gives=("cifar-100-python/meta", "cifar-100-python/test", "cifar-100-python/train"),
    ),
)

DOWNLOADS: Mapping[str, tuple[Download, ...]] = {
    "cifar10": (
        Download(
            f"{_TORONTO}/cifar-10-python.tar.gz",
            "cifar-10-python.tar.gz",
            "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            170_498_071,
            unpack="tar",
            unpacked=187_000_000,
            gives=(
                *(f"cifar-10-batches-py/data_batch_{part}" for part in range(1, 6)),
                "cifar-10-batches-py/test_batch",
            ),
        ),
    ),
    "cifar100": _CIFAR100_FILES,
    "cifar100_coarse": _CIFAR100_FILES,
    "digit5": (*_MNIST_FILES, *_SVHN_FILES, *_USPS_FILES),
    "emnist_balanced": _emnist("balanced"),
    "emnist_byclass": _emnist("byclass"),
    "emnist_bymerge": _emnist("bymerge"),
    "emnist_digits": _emnist("digits"),
    "emnist_letters": _emnist("letters"),
    "emnist_letters10": _emnist("letters"),
    "emnist_mnist": _emnist("mnist"),
    "fashion_mnist": _idx(
        _FASHION,
        "FashionMNIST",
        {
            "train-images-idx3": (
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                26_421_880,
            ),
            "train-labels-idx1": (
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                29_515,
            ),
            "t10k-images-idx3": (
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                4_422_102,
            ),
            "t10k-labels-idx1": (
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                5_148,
            ),
        },
    ),
    "mnist": _MNIST_FILES,
    "sun397": (
        Download(
            "http://vision.princeton.edu/projects/2010/SUN/SUN397.tar.gz",
            "SUN397.tar.gz",
            "md5:8ca2778205c41d23104230ba66911c7a",
            unpack="tar",
            unpacked=40_000_000_000,
            gives=("SUN397/ClassName.txt",),
        ),
    ),
    "svhn": _SVHN_FILES,
    "tiny_imagenet": (
        Download(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "tiny-imagenet-200.zip",
            "sha256:6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
            248_100_043,
            unpack="zip",
            unpacked=300_000_000,
            gives=("tiny-imagenet-200/val/val_annotations.txt", "tiny-imagenet-200/wnids.txt"),
        ),
    ),
    "usps": _USPS_FILES,
}
"""Files that ``fedtailor data fetch`` downloads, by name of the data set."""

_MNIST_M = (
    "MNIST-M is on a shared drive linked from its author's page, http://yaroslav.ganin.net: put the folders "
    "mnist_m_train and mnist_m_test with their files mnist_m_train_labels.txt and mnist_m_test_labels.txt into MNIST-M."
)
_SYN_DIGITS = (
    "SynDigits (SynthDigits.zip) is on a shared drive linked from its author's page, http://yaroslav.ganin.net: "
    "put synth_train_32x32.mat and synth_test_32x32.mat into SynthDigits."
)

ELSEWHERE: Mapping[str, str] = {
    "digit5": f"{_MNIST_M} {_SYN_DIGITS}",
    "femnist": "LEAF's scripts make FEMNIST by writer, https://github.com/TalwalkarLab/leaf (data/femnist): "
    "put its folders train and test with all_data_*.json into femnist.",
    "mnist_m": _MNIST_M,
    "sun397": "SUN397 also needs its hierarchy of categories: unpack "
    "https://vision.princeton.edu/projects/2010/SUN/hierarchy_three_levels.zip and save the sheet SUN397 of "
    "three_levels.xlsx as SUN397/hierarchy_three_levels/three_levels.csv.",
    "syn_digits": _SYN_DIGITS,
}
"""Instructions for files that cannot be fetched: their source, and their place in the data
folder."""
