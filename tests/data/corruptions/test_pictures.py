"""Pictures of frost: photographs from a folder, drawn textures."""

import hashlib

import numpy as np
import pytest
from PIL import Image

from fedtailor.core.errors import DataError
from fedtailor.data.corruptions.pictures import draw_frost, load_frost


@pytest.fixture
def folder(tmp_path):
    """Return a folder with five photographs, one with transparency and one as JPEG."""
    place = tmp_path / "frost"
    place.mkdir()
    generator = np.random.default_rng(0)
    for number in range(1, 5):
        channels = 4 if number == 2 else 3
        pixels = generator.integers(0, 256, (203, 167, channels), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"frost{number}.png")
    Image.fromarray(np.full((70, 60, 3), 99, np.uint8)).save(place / "frost5.jpg")
    Image.fromarray(np.zeros((70, 60, 3), np.uint8)).save(place / "frost6.jpg")  # not used
    return place


def test_photographs_are_scaled_by_a_fifth_without_averaging(folder):
    sources = {}
    pictures = load_frost(folder, sources)
    for number, picture in enumerate(pictures[:4], 1):
        with Image.open(folder / f"frost{number}.png") as image:
            pixels = np.asarray(image)
        # bilinear without averaging: the value at 5 (i + 1/2) - 1/2 = 5 i + 2, a pixel; 203 / 5
        # rounds to 41
        assert picture.shape == (41, 33, 3)
        for y, x in [(0, 0), (40, 32), (7, 11)]:
            np.testing.assert_array_equal(picture[y, x], pixels[5 * y + 2, 5 * x + 2, :3])
    assert len(pictures) == 5 and (pictures[4] == 99).all() and pictures[4].shape == (14, 12, 3)
    assert list(sources) == [f"frost/frost{n}.png" for n in range(1, 5)] + ["frost/frost5.jpg"]
    assert (
        sources["frost/frost1.png"]
        == hashlib.sha256((folder / "frost1.png").read_bytes()).hexdigest()
    )


def test_none_at_all_are_no_error(tmp_path):
    assert load_frost(tmp_path / "frost", {}) == []


def test_some_alone_are_not_used(folder):
    (folder / "frost2.png").unlink()
    assert load_frost(folder, {}) == []


@pytest.mark.parametrize("content", [b"", b"GIF89a", None])
def test_a_damaged_photograph_is_an_error_that_names_it(folder, content):
    path = folder / "frost3.png"
    path.write_bytes(path.read_bytes()[:4000] if content is None else content)
    with pytest.raises(DataError) as caught:
        load_frost(folder, {})
    assert caught.value.path == str(path)


def test_drawn_frost_is_always_the_same_and_like_photographs():
    pictures = draw_frost()
    for first, second in zip(pictures, draw_frost(), strict=True):
        np.testing.assert_array_equal(first, second)
        assert first.shape == (128, 128, 3) and first.dtype == np.uint8
        red, green, blue = first.mean(axis=(0, 1))
        assert 100 < red < green < blue < 200  # of the photographs: 146, 167, 179
        assert 20 < first.std(axis=(0, 1)).mean() < 50
    assert len({picture.tobytes() for picture in pictures}) == 5
