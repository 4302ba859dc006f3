"""Small folders of own data: a good one, and one for each way in which they can be broken."""

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from fedtailor.data.own import walk


def pixels(seed, shape=(8, 8)):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path, array, **options):
    """Save an array or an image of Pillow's, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = array if isinstance(array, Image.Image) else Image.fromarray(array)
    image.save(path, **options)
    return path


def two_sites(folder, *, images=10, layout="{site}/{label}"):
    """Write sites A and B with classes cat and dog, every image another."""
    for place, (site, label) in enumerate([("A", "cat"), ("A", "dog"), ("B", "cat"), ("B", "dog")]):
        for number in range(images):
            save(
                folder / layout.format(site=site, label=label) / f"{site}{number}.png",
                pixels(1000 * place + number),
            )
    return folder


def arrays(folder, site, part="train", **changes):
    """Write ``SITE/train.npz`` with 12 images of two classes."""
    (folder / site).mkdir(parents=True, exist_ok=True)
    content = {"x": pixels(len(site), (12, 8, 8)), "y": np.arange(12) % 2} | changes
    np.savez(
        folder / site / f"{part}.npz",
        **{name: value for name, value in content.items() if value is not None},
    )


def table(folder, site, text=None):
    """Write ``SITE.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    text = text or "a,b,label\n" + "".join(f"{n},{n * n + len(site)},{n % 2}\n" for n in range(12))
    (folder / f"{site}.csv").write_text(text)


def png_header(width, height):
    """Return a PNG of that size in a few bytes, with no pixels in it."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def _empty_site(folder):
    (two_sites(folder) / "C" / "cat").mkdir(parents=True)


def _empty_class(folder):
    (two_sites(folder) / "A" / "bird").mkdir()


def _one_class(folder):
    for site in "AB":
        for number in range(10):
            save(folder / site / "cat" / f"{number}.png", pixels(number + ord(site) * 100))


def _one_class_site(folder):
    for number in range(10):
        save(two_sites(folder) / "C" / "cat" / f"{number}.png", pixels(9000 + number))


def _no_test(folder):
    two_sites(folder, layout="{site}/train/{label}")
    for label in ("cat", "dog"):
        save(folder / "A" / "test" / label / "1.png", pixels(len(label) * 77 + ord(label[0])))


def _no_training(folder):
    two_sites(folder, layout="{site}/train/{label}")
    save(folder / "C" / "test" / "cat" / "1.png", pixels(5000))


def _test_only_class(folder):
    two_sites(folder, layout="{site}/train/{label}")
    save(folder / "A" / "test" / "bird" / "1.png", pixels(5000))


def _untrained_class(folder):
    two_sites(folder, layout="{site}/train/{label}")
    save(folder / "A" / "train" / "bird" / "1.png", pixels(5000))
    save(folder / "B" / "test" / "bird" / "1.png", pixels(5001))


def _one_size_off(folder):
    save(two_sites(folder) / "B" / "cat" / "odd.png", pixels(5000, (9, 8)))


def _put(content, name="odd.png"):
    def build(folder):
        (two_sites(folder) / "A" / "cat" / name).write_bytes(
            content() if callable(content) else content
        )

    return build


def _truncated(kind):
    def content():
        stream = io.BytesIO()
        Image.fromarray(pixels(5, (64, 64, 3))).save(stream, kind)
        return stream.getvalue()[: stream.tell() // 2]

    return content


def _nan_pixels(folder):
    values = np.full((8, 8), np.nan, dtype=np.float32)
    save(two_sites(folder) / "A" / "cat" / "odd.tiff", Image.fromarray(values))


def _dark(folder):
    values = np.random.default_rng(0).integers(0, 4096, (8, 8)).astype(np.uint16)
    save(two_sites(folder) / "A" / "cat" / "odd.png", Image.fromarray(values))


def _duplicate(source, target, layout="{site}/{label}"):
    def build(folder):
        content = (two_sites(folder, layout=layout) / source).read_bytes()
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        (folder / target).write_bytes(content)

    return build


def _not_utf8(folder):
    name = os.fsdecode(b"caf\xe9")
    for site in "AB":
        for number in range(3):
            save(
                two_sites(folder) / site / name / os.fsdecode(b"%d\xff.png" % number),
                pixels(ord(site) * 50 + number),
            )


def _named(site, label):
    def build(folder):
        for number in range(10):
            save(two_sites(folder) / site / label / f"{number}.png", pixels(7000 + number))
            save(folder / site / "dog" / f"{number}.png", pixels(8000 + number))

    return build


def _two_forms(folder):
    _named("a\u030a", "dog2")(folder)
    _named("\u00e5", "dog2")(folder)


def _link(target, name):
    def build(folder):
        (two_sites(folder) / "A" / name).symlink_to(
            target if target.startswith("/") else folder / target
        )

    return build


def _link_outside(folder):
    outside = save(folder.parent / "outside" / "1.png", pixels(5000))
    (two_sites(folder) / "A" / "cat" / "odd.png").symlink_to(outside)


def _pipe(folder):
    os.mkfifo(two_sites(folder) / "A" / "cat" / "odd.png")


def _unreadable(folder):
    save(two_sites(folder) / "A" / "cat" / "odd.png", pixels(5000)).chmod(0)


def _stray(folder):
    (two_sites(folder) / "A" / "README.txt").write_text("Read me.")


def _misplaced(folder):
    save(two_sites(folder) / "A" / "odd.png", pixels(5000))


def _validation(folder):
    for part in ("train", "val"):
        for label in ("cat", "dog"):
            save(folder / part / label / "1.png", pixels(len(part) * 10 + ord(label[0])))


def _train_and_holdout(folder):
    for part in ("train", "holdout"):
        for label in ("cat", "dog"):
            save(folder / part / label / "1.png", pixels(len(part) * 10 + ord(label[0])))


def _nothing_to_train(folder):
    two_sites(folder, layout="{site}/test/{label}")


def _dark_8_bit(folder):
    two_sites(folder)
    for path in folder.rglob("*.png"):
        save(path, np.asarray(Image.open(path)) // 16)


def _part_and_site(folder):
    for part in ("train", "test", "A"):
        save(folder / part / "cat" / "1.png", pixels(ord(part[1:2] or "A")))


def _top(folder):
    save(folder / "1.png", pixels(1))


def _many_sites(folder):
    for number in range(walk.MAX_SITES + 1):
        (folder / f"s{number}" / "cat").mkdir(parents=True)


def _same_stem(folder):
    table(folder, "A")
    (folder / "A.parquet").write_bytes(b"PAR1")


def _arrays(**changes):
    def build(folder):
        arrays(folder, "A")
        arrays(folder, "BB", **changes)

    return build


def _arrays_of(x):
    def build(folder):
        arrays(folder, "A", x=x)

    return build


def _table(text):
    def build(folder):
        table(folder, "A")
        table(folder, "BB", text)

    return build


def _damaged_archive(folder):
    arrays(folder, "A")
    path = folder / "A" / "train.npz"
    path.write_bytes(path.read_bytes()[:200])


def _empty_column(folder):
    for site in ("A", "BB"):
        table(folder, site, f"a,b,label\n{len(site)},nan,0\n{len(site) + 7},,1\n")


def _notes():
    return "".join(f"{row},the patient number {row} was seen today,{row % 2}\n" for row in range(6))


def _names():
    return "".join(f"{row},patient {row},{row % 2}\n" for row in range(60))


def _not_parquet(folder):
    table(folder, "A")
    (folder / "B.parquet").write_bytes(b"PAR1 this is none")


def _parquet_of_lists(folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    from pyarrow import table as make

    folder.mkdir(parents=True, exist_ok=True)
    for site in "AB":
        parquet.write_table(make({"a": [[1, 2], [3]], "label": [0, 1]}), folder / f"{site}.parquet")


class Broken(NamedTuple):
    """A broken folder and what is said of it."""

    name: str
    severity: str
    kind: str
    build: Callable[[Path], None]


BROKEN = [
    Broken("empty folder", "error", "empty_folder", lambda folder: folder.mkdir()),
    Broken("no folder", "error", "not_found", lambda folder: None),
    Broken(
        "a file of another kind",
        "error",
        "unknown_layout",
        lambda folder: folder.write_text("text"),
    ),
    Broken("images at the top", "error", "unknown_layout", _top),
    Broken("parts beside sites", "error", "ambiguous_layout", _part_and_site),
    Broken("a part under another name", "error", "ambiguous_layout", _train_and_holdout),
    Broken("a validation folder", "error", "validation_folder", _validation),
    Broken("too many sites", "error", "too_many_sites", _many_sites),
    Broken("two tables of a site", "error", "duplicate_site", _same_stem),
    Broken("empty site", "skipped", "empty_site", _empty_site),
    Broken("empty class", "skipped", "empty_class", _empty_class),
    Broken("one class", "error", "one_class", _one_class),
    Broken("site with one class", "warning", "one_class_site", _one_class_site),
    Broken("site without test", "warning", "no_test", _no_test),
    Broken("site without training", "warning", "no_training", _no_training),
    Broken("nothing to train", "error", "no_training", _nothing_to_train),
    Broken("class in test only", "warning", "class_in_test_only", _test_only_class),
    Broken("class not trained at its site", "warning", "class_not_trained", _untrained_class),
    Broken("class at one site", "warning", "class_at_one_site", _named("A", "bird")),
    Broken("few examples", "warning", "few_examples", lambda folder: two_sites(folder, images=2)),
    Broken("one size off", "error", "image_sizes", _one_size_off),
    Broken("empty file", "skipped", "empty_file", _put(b"")),
    Broken("text named png", "skipped", "not_an_image", _put(b"this is text")),
    Broken("truncated png", "skipped", "truncated_image", _put(_truncated("png"))),
    Broken("truncated jpeg", "skipped", "truncated_image", _put(_truncated("jpeg"), "odd.jpg")),
    Broken("damaged webp", "skipped", "damaged_image", _put(_truncated("webp"), "odd.webp")),
    Broken(
        "postscript named png",
        "skipped",
        "not_an_image",
        _put(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n"),
    ),
    Broken("bomb", "skipped", "image_too_large", _put(png_header(8000, 8000))),
    Broken("larger bomb", "skipped", "image_too_large", _put(png_header(100_000, 100_000))),
    Broken("NaN pixels", "skipped", "unsupported_image", _nan_pixels),
    Broken("12 bits in 16", "warning", "dark_16_bit", _dark),
    Broken("4 bits in 8", "warning", "dark_8_bit", _dark_8_bit),
    Broken("4 bits in arrays", "warning", "dark_8_bit", _arrays_of(pixels(1, (12, 8, 8)) // 16)),
    Broken(
        "12 bits in arrays",
        "warning",
        "dark_16_bit",
        _arrays_of(pixels(1, (12, 8, 8)).astype(np.uint16) * 16),
    ),
    Broken(
        "duplicate in arrays",
        "warning",
        "duplicate_in_site",
        _arrays_of(np.full((12, 8, 8), 99, np.uint8)),
    ),
    Broken(
        "duplicate row", "warning", "duplicate_in_site", _table("a,b,label\n9,9,1\n9,9,1\n8,8,0\n")
    ),
    Broken(
        "duplicate in site",
        "warning",
        "duplicate_in_site",
        _duplicate("A/cat/A1.png", "A/cat/odd.png"),
    ),
    Broken(
        "duplicate at sites",
        "warning",
        "duplicate_across_sites",
        _duplicate("A/cat/A1.png", "B/cat/odd.png"),
    ),
    Broken(
        "duplicate of other class",
        "warning",
        "duplicate_other_class",
        _duplicate("A/cat/A1.png", "A/dog/odd.png"),
    ),
    Broken(
        "duplicate in test",
        "warning",
        "duplicate_train_test",
        _duplicate("A/train/cat/A1.png", "A/test/cat/odd.png", "{site}/train/{label}"),
    ),
    Broken("name not UTF-8", "warning", "non_utf8_name", _not_utf8),
    Broken("name with HTML", "warning", "unsafe_name", _named("<b>site<!-- ", "dog&cat")),
    Broken("name like a formula", "warning", "unsafe_name", _named("=HYPERLINK(1)", "bird")),
    Broken(
        "name with terminal escapes",
        "warning",
        "unsafe_name",
        _named("\x1b[31mred\x07", "bi\rrd\u202e"),
    ),
    Broken("names that differ by case", "warning", "similar_names", _named("A", "Cat")),
    Broken("names that differ by Unicode form", "warning", "similar_names", _two_forms),
    Broken("link to itself", "skipped", "symlink_loop", _link("A/odd", "odd")),
    Broken("link to its folder", "skipped", "symlink_loop", _link(".", "odd")),
    Broken("link to a sibling", "skipped", "symlink_folder", _link("B", "odd")),
    Broken("link to nothing", "skipped", "broken_symlink", _link("nothing", "odd.png")),
    Broken("link to the root", "skipped", "symlink_outside", _link("/", "odd")),
    Broken("link to a file outside", "skipped", "symlink_outside", _link_outside),
    Broken("pipe", "skipped", "not_a_file", _pipe),
    Broken("unreadable file", "skipped", "unreadable_file", _unreadable),
    Broken("stray file", "skipped", "stray_file", _stray),
    Broken("misplaced file", "skipped", "misplaced_file", _misplaced),
    Broken("label -1", "error", "negative_label", _arrays(y=np.arange(12) - 1)),
    Broken(
        "label beyond classes",
        "error",
        "label_out_of_range",
        _arrays(class_names=np.array(["cat"])),
    ),
    Broken("float labels", "error", "float_label", _arrays(y=np.arange(12) / 2)),
    Broken(
        "NaN values",
        "error",
        "not_finite",
        _arrays(x=np.full((12, 8, 8), np.nan, dtype=np.float32)),
    ),
    Broken("other shape", "error", "shape_differs", _arrays(x=pixels(1, (12, 9, 9)))),
    Broken("missing array", "error", "missing_array", _arrays(y=None)),
    Broken("objects", "error", "object_array", _arrays(y=np.array([None] * 12))),
    Broken("corrupt archive", "error", "damaged_archive", _damaged_archive),
    Broken("missing label column", "error", "missing_label_column", _table("a,b\n1,2\n")),
    Broken("ragged rows", "error", "ragged_row", _table("a,b,label\n1,2,0\n1,2\n3,4,1\n")),
    Broken("decimal commas", "error", "not_a_number", _table('a,b,label\n1,"1,5",0\n3,4,1\n')),
    Broken("text and numbers", "warning", "mixed_column", _table("a,b,label\n1,x,0\n3,4,1\n")),
    Broken("a column without values", "skipped", "empty_column", _empty_column),
    Broken("dates", "error", "dates", _table("a,b,label\n1,2020-01-31,0\n3,2020-02-01,1\n")),
    Broken(
        "several labels",
        "error",
        "several_labels",
        _table("a,label\n1,flu|covid\n3,flu\n4,covid\n"),
    ),
    Broken(
        "series in cells",
        "error",
        "time_series",
        _table('a,b,label\n1,"[1, 2, 3]",0\n3,"[1, 5]",1\n'),
    ),
    Broken("notes", "error", "free_text", _table(f"a,b,label\n{_notes()}")),
    Broken("names", "error", "too_many_categories", _table(f"a,b,label\n{_names()}")),
    Broken("paths of images", "error", "image_paths", _table("a,b,label\n1,1.png,0\n3,2.png,1\n")),
    Broken("DICOM", "error", "dicom", _put(b"\0" * 128 + b"DICM", "scan.dcm")),
    Broken("DICOM without an ending", "error", "dicom", _put(b"\0" * 128 + b"DICM", "IM0001")),
    Broken("DICOM called PNG", "error", "dicom", _put(b"\0" * 128 + b"DICM")),
    Broken("no Parquet", "error", "damaged_table", _not_parquet),
    Broken("Parquet of lists", "error", "time_series", _parquet_of_lists),
]


@pytest.fixture
def folder(tmp_path):
    """Return the path of a folder that is not there yet."""
    return tmp_path / "mine"


@pytest.fixture(params=BROKEN, ids=lambda case: case.name.replace(" ", "-"))
def broken(request, folder, monkeypatch):
    """Return a broken folder, built, and its case."""
    case = request.param
    if case.name == "unreadable file" and os.geteuid() == 0:
        pytest.skip("root reads everything")
    monkeypatch.setattr(walk, "MAX_SITES", 20)
    case.build(folder)
    return folder, case


@pytest.fixture
def make():
    """Return the functions that write small folders: an ``images`` tree, ``arrays``, ``table``, and
    ``save``."""

    class Make:
        images = staticmethod(two_sites)
        arrays = staticmethod(arrays)
        table = staticmethod(table)
        save = staticmethod(save)
        pixels = staticmethod(pixels)

    return Make
