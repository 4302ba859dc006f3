"""The table of known data sets: description, files, downloads, license and citation.

Nothing is imported until an entry is used, so that a listing is immediate. Most authors, and
torchvision, give an MD5 of a file; the table has a SHA-256 where it is known. Both detect damage;
only SHA-256 detects a deliberate change. Addresses and checksums are from torchvision 0.2x
(``torchvision/datasets``) and the authors' pages.
"""

from __future__ import annotations

import csv
import pkgutil
import struct
import tokenize
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from fedtailor.core.reading import UNEXPECTED

if TYPE_CHECKING:
    from fedtailor.data.dataset import Dataset
    from fedtailor.data.files import Files

_DAMAGE: tuple[type[Exception], ...] = (
    *UNEXPECTED,
    EOFError,
    OSError,
    Warning,
    csv.Error,
    struct.error,
    tokenize.TokenError,
    zlib.error,
)
"""What damaged content raises in readers; a lack of memory is none of it."""


class PublishedFile(NamedTuple):
    """One published file."""

    url: str
    path: str
    """Destination, relative to the data folder."""
    checksum: str
    """``sha256:`` or ``md5:`` and hexadecimal digits."""
    unpack: Literal["", "tar", "zip"] = ""
    """Kind of archive, which is removed after unpacking; empty: the file is used as it is."""
    into: str = "."
    """Folder in which an archive is unpacked, relative to the data folder."""
    strip: str = ""
    """Folder of the archive whose files are moved there; empty: all folders are."""
    gives: tuple[str, ...] = ()
    """Files of an archive, relative to the data folder: if they exist, all do."""


class KnownDataset(NamedTuple):
    """A row of the table."""

    reader: str
    """``module:function`` within this package: ``load(files: Files) -> Dataset``."""
    description: str
    examples: int
    """Published examples, training and test together; -1: not a fixed number."""
    files: tuple[str, ...] = ()
    """Patterns of the files that may be read, relative to the data folder; empty: no file is
    needed."""
    downloads: tuple[PublishedFile, ...] = ()
    """What ``fedtailor data fetch`` downloads."""
    elsewhere: str = ""
    """Instructions for files that cannot be fetched: their source, and their place."""
    license: str = "none stated by the authors"
    citation: str = ""
    tested_on: Literal["original", "synthetic"] = "original"
    """Whether the reader was tested on the original files, or on synthetic files only."""

    def load(self, files: Files) -> Dataset:
        """Import the reader, and read the files.

        Raises:
            DataError: a file is missing or damaged. What damaged content raises is about the file
                that was read last.
        """
        from fedtailor.data.files import wrong_content

        read = pkgutil.resolve_name(f"{__name__}.{self.reader}")
        try:
            return cast("Dataset", read(files))
        except _DAMAGE as error:
            raise wrong_content(files.last, "an intact file", error) from error


_KRIZHEVSKY = (
    "Krizhevsky 2009, Learning multiple layers of features from tiny images, report, University of "
    "Toronto."
)
_CALDAS = (
    "Caldas, Duddu, Wu, Li, Konečný et al. 2018, LEAF: a benchmark for federated settings, "
    "arXiv:1812.01097."
)
_GANIN = (
    "Ganin, Ustinova, Ajakan et al. 2016, Domain-adversarial training of neural networks, JMLR."
)

_MNIST_M_FOLDER = (
    "MNIST-M is on a shared drive linked from its author's page, http://yaroslav.ganin.net: put "
    "the folders mnist_m_train and mnist_m_test with their files mnist_m_train_labels.txt and "
    "mnist_m_test_labels.txt into MNIST-M."
)
_SYN_DIGITS_FOLDER = (
    "SynDigits (SynthDigits.zip) is on a shared drive linked from its author's page, "
    "http://yaroslav.ganin.net: put synth_train_32x32.mat and synth_test_32x32.mat into "
    "SynthDigits."
)


def _idx(url: str, folder: str, *files: tuple[str, str]) -> tuple[PublishedFile, ...]:
    """Return the files of MNIST or Fashion-MNIST, each from its name and SHA-256."""
    published = []
    for name, checksum in files:
        file = f"{name}-ubyte.gz"
        published.append(
            PublishedFile(f"{url}/{file}", f"{folder}/raw/{file}", f"sha256:{checksum}")
        )

    return tuple(published)


_MNIST = _idx(
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "MNIST",
    ("train-images-idx3", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    ("train-labels-idx1", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    ("t10k-images-idx3", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    ("t10k-labels-idx1", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
_FASHION_MNIST = _idx(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "FashionMNIST",
    ("train-images-idx3", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    ("train-labels-idx1", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    ("t10k-images-idx3", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    ("t10k-labels-idx1", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)
_SVHN = (
    PublishedFile(
        "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
        "SVHN/train_32x32.mat",
        "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    ),
    PublishedFile(
        "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
        "SVHN/test_32x32.mat",
        "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    ),
)
_USPS_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"
_USPS = (
    PublishedFile(f"{_USPS_URL}/usps.bz2", "USPS/usps.bz2", "md5:ec16c51db3855ca6c91edd34d0e9b197"),
    PublishedFile(
        f"{_USPS_URL}/usps.t.bz2", "USPS/usps.t.bz2", "md5:8ea070ee2aca1ac39742fdd1ef5ed118"
    ),
)
_CIFAR10 = PublishedFile(
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "cifar-10-python.tar.gz",
    "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    unpack="tar",
    gives=(
        *(f"cifar-10-batches-py/data_batch_{part}" for part in range(1, 6)),
        "cifar-10-batches-py/test_batch",
    ),
)
_CIFAR100 = KnownDataset(
    "cifar:load",
    "60,000 color photographs of 32x32 pixels, 100 classes",
    60_000,
    ("cifar-100-python/*",),
    (
        PublishedFile(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "cifar-100-python.tar.gz",
            "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            unpack="tar",
            gives=("cifar-100-python/meta", "cifar-100-python/test", "cifar-100-python/train"),
        ),
    ),
    citation=_KRIZHEVSKY,
)

_EMNIST = PublishedFile(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "EMNIST/raw/gzip.zip",
    "sha256:fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
    unpack="zip",
    into="EMNIST/raw",
    strip="gzip",
)
"""One archive with all splits."""


def _emnist(split: str, examples: int, what: str, function: str = "load_emnist") -> KnownDataset:
    """Return the row of one split of EMNIST."""
    contents = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
    gives = tuple(f"EMNIST/raw/emnist-{split}-{content}-ubyte.gz" for content in contents)
    return KnownDataset(
        f"mnist:{function}",
        f"EMNIST {what}, 28x28 pixels",
        examples,
        (f"EMNIST/raw/emnist-{split}-*", f"EMNIST/gzip/emnist-{split}-*"),
        (_EMNIST._replace(gives=gives),),
        license="public domain (NIST)",
        citation="Cohen, Afshar, Tapson and van Schaik 2017, EMNIST: extending MNIST to "
        "handwritten letters, IJCNN.",
        tested_on="synthetic",
    )


_EMNIST_SPLITS = (
    ("balanced", 131_600, "balanced: 131,600 digits and letters, 47 classes"),
    ("byclass", 814_255, "by class: 814,255 digits and letters, 62 classes"),
    ("bymerge", 814_255, "by merge: 814,255 digits and letters, 47 classes"),
    ("digits", 280_000, "digits: 280,000 digits, 10 classes"),
    ("letters", 145_600, "letters: 145,600 letters, 26 classes"),
    ("mnist", 70_000, "of MNIST's size: 70,000 digits, 10 classes"),
)


def _medmnist(name: str, examples: int, what: str, md5: str) -> KnownDataset:
    """Return the row of one data set of MedMNIST."""
    url = f"https://zenodo.org/record/6496656/files/{name}.npz?download=1"
    return KnownDataset(
        "medmnist:load",
        f"MedMNIST: {examples:,} {what}, 28x28 pixels",
        examples,
        (f"MedMNIST/{name}.npz", f"{name}.npz"),
        (PublishedFile(url, f"MedMNIST/{name}.npz", f"md5:{md5}"),),
        license="CC BY 4.0",
        citation="Yang, Shi, Wei et al. 2023, MedMNIST v2: a large-scale lightweight benchmark for "
        "2D and 3D biomedical image classification, Scientific Data.",
        tested_on="synthetic",
    )


_MEDMNIST = (
    ("bloodmnist", 17_092, "blood cells, 8 classes", "7053d0359d879ad8a5505303e11de1dc"),
    (
        "breastmnist",
        780,
        "ultrasound images of the breast, 2 classes",
        "750601b1f35ba3300ea97c75c52ff8f6",
    ),
    ("octmnist", 109_309, "scans of the retina, 4 classes", "c68d92d5b585d8d81f7112f81e2d0842"),
    ("organamnist", 58_850, "organs, axial, 11 classes", "866b832ed4eeba67bfb9edee1d5544e6"),
    ("organcmnist", 23_660, "organs, coronal, 11 classes", "0afa5834fb105f7705a7d93372119a21"),
    ("organsmnist", 25_221, "organs, sagittal, 11 classes", "e5c39f1af030238290b9557d9503af9d"),
    ("pathmnist", 107_180, "images of colon tissue, 9 classes", "a8b06965200029087d5bd730944a56c1"),
    (
        "pneumoniamnist",
        5_856,
        "X-ray images of children's chests, 2 classes",
        "28209eda62fecd6e6a2d98b1501bb15f",
    ),
    ("retinamnist", 1_600, "images of the retina, 5 grades", "bd4c0672f1bba3e3a89f0e4e876791e4"),
    ("tissuemnist", 236_386, "kidney cells, 8 classes", "ebe78ee8b05294063de985d821c1c34b"),
)
"""Name, examples, what they are, and MD5."""


_ROWS: Mapping[str, KnownDataset] = {
    **{f"emnist_{row[0]}": _emnist(*row) for row in _EMNIST_SPLITS},
    **{row[0]: _medmnist(*row) for row in _MEDMNIST},
    "dermamnist": _medmnist(
        "dermamnist",
        10_015,
        "photographs of skin lesions, 7 classes",
        "0744692d530f8e62ec473284d019b0c7",
    )._replace(license="CC BY-NC 4.0"),
    "cifar10": KnownDataset(
        "cifar:load",
        "60,000 color photographs of 32x32 pixels, 10 classes",
        60_000,
        ("cifar-10-batches-py/*",),
        (_CIFAR10,),
        citation=_KRIZHEVSKY,
    ),
    "cifar100": _CIFAR100,
    "cifar100_coarse": _CIFAR100._replace(
        description="CIFAR-100 with its 20 superclasses as labels and the 100 classes as subclasses"
    ),
    "digit5": KnownDataset(
        "digit5:load",
        "five domains of digits: MNIST, SVHN, USPS, SynDigits, MNIST-M, as 32x32 color pixels",
        -1,
        ("MNIST/raw/*", "SVHN/*.mat", "USPS/*", "SynthDigits/*.mat", "MNIST-M/**/*"),
        (*_MNIST, *_SVHN, *_USPS),
        f"{_MNIST_M_FOLDER} {_SYN_DIGITS_FOLDER}",
        citation="composed of the five original data sets; see their citations.",
        tested_on="synthetic",
    ),
    "digits": KnownDataset(
        "digits:load",
        "1,797 handwritten digits of 8x8 pixels, part of scikit-learn: no download",
        1797,
        license="CC BY 4.0 (UCI Machine Learning Repository)",
        citation="Alpaydin and Kaynak 1998, Optical recognition of handwritten digits, UCI "
        "repository.",
    ),
    "emnist_letters10": _emnist(
        "letters",
        56_000,
        "letters, the first ten: 56,000 images, standardized (FedCR)",
        "load_letters10",
    ),
    "fashion_mnist": KnownDataset(
        "mnist:load",
        "70,000 gray pictures of clothes of 28x28 pixels, 10 classes",
        70_000,
        ("FashionMNIST/raw/*",),
        _FASHION_MNIST,
        license="MIT (Zalando SE)",
        citation="Xiao, Rasul and Vollgraf 2017, Fashion-MNIST: a novel image dataset for "
        "benchmarking machine learning algorithms, arXiv:1708.07747.",
    ),
    "femnist": KnownDataset(
        "leaf:load_femnist",
        "handwritten digits and letters of 28x28 pixels by writer (LEAF), 62 classes",
        -1,
        ("femnist/**/train/*.json", "femnist/**/test/*.json"),
        elsewhere="LEAF's scripts make FEMNIST by writer, https://github.com/TalwalkarLab/leaf "
        "(data/femnist): put its folders train and test with all_data_*.json into femnist.",
        license="BSD 2-Clause (LEAF); public domain (NIST)",
        citation=_CALDAS,
        tested_on="synthetic",
    ),
    "har": KnownDataset(
        "har:load",
        "10,299 windows of a smartphone's signals by person (UCI HAR), 561 features, 6 activities",
        10_299,
        ("UCI HAR Dataset/t*/*.txt",),
        elsewhere="the UCI repository has it, https://archive.ics.uci.edu/dataset/240 (Human "
        "Activity Recognition Using Smartphones): put its folder 'UCI HAR Dataset' with train and "
        "test into the data folder.",
        license="CC BY 4.0 (UCI Machine Learning Repository)",
        citation="Anguita, Ghio, Oneto, Parra and Reyes-Ortiz 2013, A public domain dataset for "
        "human activity recognition using smartphones, ESANN.",
        tested_on="synthetic",
    ),
    "heart": KnownDataset(
        "heart:load",
        "920 patients of four hospitals, 13 measurements, whether the heart is diseased",
        920,
        ("heart/processed.*.data",),
        elsewhere="the UCI repository has it, https://archive.ics.uci.edu/dataset/45 (Heart "
        "Disease): put processed.cleveland.data, .hungarian.data, .switzerland.data and .va.data "
        "into heart.",
        license="CC BY 4.0 (UCI Machine Learning Repository)",
        citation="Janosi, Steinbrunn, Pfisterer and Detrano 1989, Heart Disease, UCI Machine "
        "Learning Repository.",
        tested_on="synthetic",
    ),
    "mnist": KnownDataset(
        "mnist:load",
        "70,000 handwritten digits of 28x28 pixels, 10 classes",
        70_000,
        ("MNIST/raw/*",),
        _MNIST,
        license="none stated by the authors; usually given as CC BY-SA 3.0",
        citation="LeCun, Bottou, Bengio and Haffner 1998, Gradient-based learning applied to "
        "document recognition, IEEE Proc.",
    ),
    "mnist_m": KnownDataset(
        "mnist_m:load",
        "68,002 digits on photographs, 32x32 color pixels, 10 classes",
        68_002,
        ("MNIST-M/**/*",),
        elsewhere=_MNIST_M_FOLDER,
        citation=_GANIN,
    ),
    "shakespeare": KnownDataset(
        "leaf:load_shakespeare",
        "the next character in the plays of Shakespeare by role (LEAF), 800 features, 80 classes",
        -1,
        ("shakespeare/**/train/*.json", "shakespeare/**/test/*.json"),
        elsewhere="LEAF's scripts make Shakespeare by role, https://github.com/TalwalkarLab/leaf "
        "(data/shakespeare): put its folders train and test with all_data_*.json into shakespeare.",
        license="BSD 2-Clause (LEAF); public domain (the plays)",
        citation=_CALDAS,
        tested_on="synthetic",
    ),
    "sun397": KnownDataset(
        "sun397:load",
        "scenes of 64x64 color pixels: 3 superclasses of 50 categories with 100 pictures each "
        "(pFedVEM)",
        15_000,
        ("SUN397/**/*.jpg", "SUN397/**/three_levels.csv"),
        (
            PublishedFile(
                "http://vision.princeton.edu/projects/2010/SUN/SUN397.tar.gz",
                "SUN397.tar.gz",
                "md5:8ca2778205c41d23104230ba66911c7a",
                unpack="tar",
                gives=("SUN397/ClassName.txt",),
            ),
        ),
        "SUN397 also needs its hierarchy of categories: unpack "
        "https://vision.princeton.edu/projects/2010/SUN/hierarchy_three_levels.zip and save the "
        "sheet SUN397 of three_levels.xlsx as SUN397/hierarchy_three_levels/three_levels.csv.",
        citation="Xiao, Hays, Ehinger, Oliva and Torralba 2010, SUN database: large-scale scene "
        "recognition, CVPR.",
        tested_on="synthetic",
    ),
    "svhn": KnownDataset(
        "svhn:load",
        "99,289 house numbers of 32x32 color pixels, 10 classes",
        99_289,
        ("SVHN/train_32x32.mat", "SVHN/test_32x32.mat"),
        _SVHN,
        license="non-commercial use (authors)",
        citation="Netzer, Wang, Coates, Bissacco, Wu and Ng 2011, Reading digits in natural "
        "images, NIPS workshop.",
        tested_on="synthetic",
    ),
    "syn_digits": KnownDataset(
        "svhn:load",
        "488,953 rendered digits of 32x32 color pixels, 10 classes",
        488_953,
        ("SynthDigits/synth_train_32x32.mat", "SynthDigits/synth_test_32x32.mat"),
        elsewhere=_SYN_DIGITS_FOLDER,
        citation=_GANIN,
        tested_on="synthetic",
    ),
    "synthetic": KnownDataset(
        "synthetic:load",
        "6,000 examples of Gaussian classes, shifted by domain, with a known best accuracy: no "
        "download",
        6_000,
        license="Apache-2.0 (fedtailor)",
        citation="made by fedtailor.",
    ),
    "tiny_imagenet": KnownDataset(
        "tiny_imagenet:load",
        "110,000 labelled color photographs of 64x64 pixels, 200 classes",
        110_000,
        (
            "tiny-imagenet-200/*.txt",
            "tiny-imagenet-200/train/*/images/*",
            "tiny-imagenet-200/val/*.txt",
            "tiny-imagenet-200/val/images/*",
        ),
        (
            PublishedFile(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "tiny-imagenet-200.zip",
                "sha256:6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
                unpack="zip",
                gives=("tiny-imagenet-200/val/val_annotations.txt", "tiny-imagenet-200/wnids.txt"),
            ),
        ),
        license="ImageNet terms: non-commercial research",
        citation="Le and Yang 2015, Tiny ImageNet visual recognition challenge, Stanford CS 231N.",
        tested_on="synthetic",
    ),
    "usps": KnownDataset(
        "usps:load",
        "9,298 handwritten digits of 16x16 pixels from envelopes, 10 classes",
        9_298,
        ("USPS/usps.bz2", "USPS/usps.t.bz2"),
        _USPS,
        citation="Hull 1994, A database for handwritten text recognition research, IEEE TPAMI.",
    ),
}

DATASETS: Mapping[str, KnownDataset] = dict(sorted(_ROWS.items()))
"""Known data sets by name."""
