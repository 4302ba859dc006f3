"""The reader of SUN397, on synthetic pictures."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedtailor.core.errors import DataError
from fedtailor.data import load_dataset
from fedtailor.data.datasets import sun397
from fedtailor.data.datasets.sun397 import load_sun397

# ambiguous categories are left out; a quoted cell, a trailing slash and more columns are all in use
HIERARCHY = ""","Which type of scene
is in the image?",,,
category,indoor,"outdoor, natural","outdoor, man-made","water, ice, snow"
/a/abbey,0,0,1,0
'/a/airplane_cabin/',1,0,0,0
/b/badlands,0,1,0,0
/c/cottage_garden,0,1,1,0
/c/church/indoor,1,0,0,0
/c/church/outdoor,,,1,
"""


@pytest.fixture
def sun(tmp_path: Path) -> Path:
    """Write six categories with five pictures each, of which one color tells the category."""
    place = tmp_path / "SUN397"
    names = [
        "a/abbey",
        "a/airplane_cabin",
        "b/badlands",
        "c/cottage_garden",
        "c/church/indoor",
        "c/church/outdoor",
    ]
    for number, name in enumerate(names):
        (place / name).mkdir(parents=True)
        for picture in range(5):
            Image.new("RGB", (70, 90), (40 * number, 10 * picture, 0)).save(
                place / name / f"sun_{picture}.jpg"
            )
    (place / "three_levels.csv").write_text(HIERARCHY)
    return place


def test_superclasses_are_labels_and_categories_subclasses(tmp_path: Path, sun: Path) -> None:
    dataset = load_dataset("sun397", tmp_path)
    assert dataset.class_names == ("indoor", "outdoor, natural", "outdoor, man-made")
    assert dataset.subclass_names == (
        "airplane_cabin",
        "church/indoor",
        "badlands",
        "abbey",
        "church/outdoor",
    )
    assert dataset.subclasses is not None and dataset.num_official_train == 20 and dataset.subset
    assert dataset.subclasses.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4 + [
        0,
        1,
        2,
        3,
        4,
    ]
    assert dataset.y.tolist() == [0] * 8 + [1] * 4 + [2] * 8 + [0, 0, 1, 2, 2]
    assert dataset.x.shape == (25, 64, 64, 3)
    np.testing.assert_allclose(dataset.x[:20:4, 0, 0, 0].astype(int), [40, 160, 80, 0, 200], atol=4)
    np.testing.assert_allclose(dataset.x[:4, 0, 0, 1].astype(int), [0, 10, 20, 30], atol=4)
    np.testing.assert_allclose(dataset.x[20:, 0, 0, 1].astype(int), 40, atol=4)
    assert set(dataset.sources) == {"SUN397/three_levels.csv", "SUN397/**/*.jpg"}


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_ways_to_save_a_table(tmp_path: Path, sun: Path, delimiter: str) -> None:
    before = load_sun397(tmp_path).digest
    header, *rows = HIERARCHY.split("category,", 1)[1].splitlines()
    header = header.replace(", ", "COMMA").replace(",", delimiter).replace("COMMA", ", ")
    text = "\n".join(
        [f"category{delimiter}{header}", *(row.replace(",", delimiter) for row in rows)]
    )
    (sun / "three_levels.csv").unlink()
    path = sun / "hierarchy_three_levels" / "three_levels.csv"
    path.parent.mkdir()
    path.write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    assert load_sun397(tmp_path).digest == before


def test_only_the_first_categories_and_pictures_are_taken(
    tmp_path: Path, sun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sun397, "_CATEGORIES", 1)
    monkeypatch.setattr(sun397, "_PICTURES", 3)
    dataset = load_sun397(tmp_path)
    assert dataset.subclass_names == ("airplane_cabin", "badlands", "abbey")
    assert len(dataset.y) == 9 and dataset.num_official_train == 6
    assert (sun397._CATEGORIES, sun397._PICTURES) == (1, 3)


def test_the_central_square_is_what_is_seen(tmp_path: Path, sun: Path) -> None:
    wide = np.zeros((64, 128, 3), np.uint8)
    wide[:, 32:96] = np.arange(64, dtype=np.uint8)[:, None]
    Image.fromarray(wide).save(
        sun / "b/badlands/sun_0.jpg", "PNG"
    )  # not every file named .jpg is one
    seen = load_sun397(tmp_path).x[8]
    np.testing.assert_array_equal(seen, wide[:, 32:96])
    checkers = np.tile(np.array([[0, 200], [200, 0]], np.uint8), (64, 64))
    Image.fromarray(checkers).save(sun / "b/badlands/sun_0.jpg", "PNG")
    assert (
        load_sun397(tmp_path).x[8, 1:-1, 1:-1] == 100
    ).all()  # larger pictures are averaged, not sampled


@pytest.mark.parametrize(
    "color", [("L", 9), ("LA", (9, 0)), ("P", 3), ("RGBA", (9, 9, 9, 0)), ("1", 1), ("CMYK", 0)]
)
def test_all_8_bit_pictures_become_color(tmp_path: Path, sun: Path, color: tuple[str, int]) -> None:
    kind = "JPEG" if color[0] == "CMYK" else "PNG"
    Image.new(color[0], (80, 80), color[1]).save(sun / "b/badlands/sun_0.jpg", kind)
    assert load_sun397(tmp_path).x.shape == (25, 64, 64, 3)


def test_16_bits_are_refused(tmp_path: Path, sun: Path) -> None:
    Image.new("I;16", (80, 80), 40_000).save(sun / "b/badlands/sun_0.jpg", "PNG")
    with pytest.raises(
        DataError, match="expected a picture of 8 bits per channel, got the mode I;16"
    ):
        load_sun397(tmp_path)


def test_a_damaged_picture_is_named(tmp_path: Path, sun: Path) -> None:
    path = sun / "c/church/indoor/sun_3.jpg"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match="expected an intact picture") as caught:
        load_sun397(tmp_path)
    assert caught.value.path == str(path)


def test_a_spreadsheet_is_explained(tmp_path: Path, sun: Path) -> None:
    (sun / "three_levels.csv").rename(sun / "three_levels.xlsx")
    with pytest.raises(
        DataError,
        match=r"expected its sheet 'SUN397', saved as CSV \(UTF-8\) in .*three_levels\.csv",
    ):
        load_sun397(tmp_path)


def test_a_missing_hierarchy_or_category_is_named(tmp_path: Path, sun: Path) -> None:
    for picture in (sun / "c/church/indoor").iterdir():
        picture.unlink()
    with pytest.raises(DataError, match=r"was not found in .*SUN397/c/church/indoor\."):
        load_sun397(tmp_path)
    (sun / "three_levels.csv").unlink()
    with pytest.raises(
        DataError, match=r"'SUN397/hierarchy_three_levels/three_levels\.csv' or 'SUN397/three"
    ):
        load_sun397(tmp_path)


HEAD = 'category,indoor,"outdoor, natural","outdoor, man-made"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "expected a table with the columns 'category'"),
        ("category,indoor\n/a/abbey,1\n", "expected a table with the columns"),
        (HEAD, "expected a category whose only superclass is 'indoor', got none"),
        (
            HEAD + "/a/abbey,1,0,0\n",
            "expected a category whose only superclass is 'outdoor, natural'",
        ),
        (
            HEAD + "/a/../../etc,1,0,0\n",
            "expected different categories such as /a/abbey, got '/a/../../etc'",
        ),
        (HEAD + "/a/abbey,1,0,0\na/abbey/,0,1,0\n", "expected different categories"),
        (HEAD + ",1,0,0\n", "expected different categories"),
        (
            HEAD + "/a/abbey,2,0,0\n",
            "expected 0 or 1 in every column of a/abbey, got ['2', '0', '0']",
        ),
        (HEAD + "/a/abbey,1,0,0\n" * 2001, "at most 2000 rows"),
        (HEAD + '"' + "x" * 200_000, "expected a table as CSV in UTF-8"),
        ("\udcff" + HEAD, "expected a table as CSV in UTF-8"),
    ],
)
def test_a_damaged_hierarchy_is_refused(
    tmp_path: Path, sun: Path, text: str, sentence: str
) -> None:
    path = sun / "three_levels.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError) as caught:
        load_sun397(tmp_path)
    assert sentence in caught.value.message and caught.value.path == str(path)
