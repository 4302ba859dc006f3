"""Small folders of own data: a good one, and one for each way in which they can be broken."""

import io
import os
import struct
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image


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
    save(two_sites(folder) / "C" / "cat" / "1.png", pixels(9000))


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
    name = os.fsdecode(b"caf\xe9") + "/" + os.fsdecode(b"1\xff.png")
    save(two_sites(folder) / "A" / name, pixels(5000))


def _named(site, label):
    def build(folder):
        two_sites(folder)
        for number in range(10):
            save(folder / site / label / f"{number}.png", pixels(7000 + number))
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


BROKEN = [
    ("error", "empty_folder", "empty folder", lambda folder: folder.mkdir()),
    ("error", "not_found", "no folder", lambda folder: None),
    ("error", "unknown_layout", "a file of another kind", lambda folder: folder.write_text("text")),
    ("error", "unknown_layout", "images at the top", _top),
    ("error", "ambiguous_layout", "parts beside sites", _part_and_site),
    ("error", "ambiguous_layout", "a part under another name", _train_and_holdout),
    ("error", "validation_folder", "a validation folder", _validation),
    ("error", "duplicate_site", "two tables of a site", _same_stem),
    ("skipped", "empty_site", "empty site", _empty_site),
    ("skipped", "empty_class", "empty class", _empty_class),
    ("error", "one_class", "one class", _one_class),
    ("warning", "one_class_site", "site with one class", _one_class_site),
    ("warning", "no_test", "site without test", _no_test),
    ("warning", "no_training", "site without training", _no_training),
    ("error", "no_training", "nothing to train", _nothing_to_train),
    ("warning", "class_in_test_only", "class in test only", _test_only_class),
    ("warning", "class_not_trained", "class not trained at its site", _untrained_class),
    ("warning", "class_at_one_site", "class at one site", _named("A", "bird")),
    ("warning", "few_examples", "few examples", lambda folder: two_sites(folder, images=2)),
    ("error", "image_sizes", "one size off", _one_size_off),
    ("skipped", "empty_file", "empty file", _put(b"")),
    ("skipped", "not_an_image", "text named png", _put(b"this is text")),
    ("skipped", "truncated_image", "truncated png", _put(_truncated("png"))),
    ("skipped", "damaged_image", "damaged webp", _put(_truncated("webp"), "odd.webp")),
    ("skipped", "image_too_large", "bomb", _put(png_header(8000, 8000))),
    ("skipped", "unsupported_image", "NaN pixels", _nan_pixels),
    ("warning", "dark_images", "12 bits in 16", _dark),
    ("warning", "dark_images", "4 bits in 8", _dark_8_bit),
    ("warning", "dark_images", "4 bits in arrays", _arrays_of(pixels(1, (12, 8, 8)) // 16)),
    (
        "warning",
        "duplicate_in_site",
        "duplicate in arrays",
        _arrays_of(np.full((12, 8, 8), 99, np.uint8)),
    ),
    (
        "warning",
        "duplicate_in_site",
        "duplicate in site",
        _duplicate("A/cat/A1.png", "A/cat/odd.png"),
    ),
    (
        "warning",
        "duplicate_across_sites",
        "duplicate at sites",
        _duplicate("A/cat/A1.png", "B/cat/odd.png"),
    ),
    (
        "warning",
        "duplicate_other_class",
        "duplicate of other class",
        _duplicate("A/cat/A1.png", "A/dog/odd.png"),
    ),
    (
        "warning",
        "duplicate_train_test",
        "duplicate in test",
        _duplicate("A/train/cat/A1.png", "A/test/cat/odd.png", "{site}/train/{label}"),
    ),
    ("warning", "class_at_one_site", "name not UTF-8", _not_utf8),
    ("warning", "similar_names", "names that differ by case", _named("A", "Cat")),
    ("warning", "similar_names", "names that differ by Unicode form", _two_forms),
    ("skipped", "link", "link to itself", _link("A/odd", "odd")),
    ("skipped", "link", "link to its folder", _link(".", "odd")),
    ("skipped", "link", "link to a sibling", _link("B", "odd")),
    ("skipped", "link", "link to nothing", _link("nothing", "odd.png")),
    ("skipped", "link", "link to the root", _link("/", "odd")),
    ("skipped", "link", "link to a file outside", _link_outside),
    ("skipped", "not_a_file", "pipe", _pipe),
    ("skipped", "unreadable_file", "unreadable file", _unreadable),
    ("skipped", "stray_file", "stray file", _stray),
    ("skipped", "misplaced_file", "misplaced file", _misplaced),
    ("error", "negative_label", "label -1", _arrays(y=np.arange(12) - 1)),
    ("error", "label_out_of_range", "label beyond classes", _arrays(class_names=np.array(["cat"]))),
    ("error", "float_label", "float labels", _arrays(y=np.arange(12) / 2)),
    ("error", "not_finite", "NaN values", _arrays(x=np.full((12, 8, 8), np.nan, dtype=np.float32))),
    ("error", "shape_differs", "other shape", _arrays(x=pixels(1, (12, 9, 9)))),
    ("error", "missing_array", "missing array", _arrays(y=None)),
    ("error", "object_array", "objects", _arrays(y=np.array([None] * 12))),
    ("error", "damaged_archive", "corrupt archive", _damaged_archive),
    ("error", "missing_label_column", "missing label column", _table("a,b\n1,2\n")),
    ("error", "ragged_row", "ragged rows", _table("a,b,label\n1,2,0\n1,2\n3,4,1\n")),
    ("error", "not_a_number", "decimal commas", _table('a,b,label\n1,"1,5",0\n3,4.5,1\n')),
    ("error", "no_header", "values in the first line", _table("63.0,1.0,1.0\n37.0,1.0,0.0\n")),
    ("warning", "mixed_column", "text and numbers", _table("a,b,label\n1,x,0\n3,4,1\n")),
    ("skipped", "empty_column", "a column without values", _empty_column),
    ("error", "dates", "dates", _table("a,b,label\n1,2020-01-31,0\n3,2020-02-01,1\n")),
    ("error", "several_labels", "several labels", _table("a,label\n1,flu|covid\n3,flu\n4,covid\n")),
    (
        "error",
        "time_series",
        "series in cells",
        _table('a,b,label\n1,"[1, 2, 3]",0\n3,"[1, 5]",1\n'),
    ),
    ("error", "free_text", "notes", _table(f"a,b,label\n{_notes()}")),
    ("error", "too_many_categories", "names", _table(f"a,b,label\n{_names()}")),
    ("error", "image_paths", "paths of images", _table("a,b,label\n1,1.png,0\n3,2.png,1\n")),
    ("error", "dicom", "DICOM", _put(b"\0" * 128 + b"DICM", "scan.dcm")),
    ("error", "dicom", "DICOM called PNG", _put(b"\0" * 128 + b"DICM")),
    ("error", "damaged_table", "no Parquet", _not_parquet),
    ("error", "time_series", "Parquet of lists", _parquet_of_lists),
]
"""Severity and kind of a problem, and a folder that has it."""


@pytest.fixture
def folder(tmp_path):
    """Return the path of a folder that is not there yet."""
    return tmp_path / "mine"


@pytest.fixture(params=BROKEN, ids=lambda case: case[2].replace(" ", "-"))
def broken(request, folder):
    """Return a broken folder, and severity and kind of its problem."""
    severity, kind, name, build = request.param
    if name == "unreadable file" and os.geteuid() == 0:
        pytest.skip("root reads everything")
    build(folder)
    return folder, severity, kind


@pytest.fixture
def make():
    """Return the functions that write small folders."""
    return SimpleNamespace(images=two_sites, arrays=arrays, table=table, save=save, pixels=pixels)
