"""How image files become one array: orientation, colors, bits, sizes, and what is left out."""

import numpy as np
import pytest
from PIL import Image

from fedtailor.data.options import DataOptions
from fedtailor.data.own import decode, images
from fedtailor.data.own.decode import reading_images
from fedtailor.data.own.duplicates import Occurrence
from fedtailor.data.own.findings import Findings, Unusable
from fedtailor.data.own.images import Picture, read_pictures
from fedtailor.data.pictures import square


def decoded(path):
    with reading_images():
        return decode.decode(path)


@pytest.mark.parametrize("orientation", [1, 2, 5, 6, 8])
def test_orientation_is_applied(orientation, folder, make):
    upright = np.zeros((3, 5), dtype=np.uint8)
    upright[0, 0] = 255  # top left
    stored = {
        1: upright,
        2: upright[:, ::-1],
        5: upright.T,
        6: np.rot90(upright),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    for end in ("png", "tiff"):
        image = decoded(
            make.save(folder / f"{orientation}.{end}", np.ascontiguousarray(stored), exif=exif)
        )
        np.testing.assert_array_equal(image.pixels[..., 0], upright)
        assert any("turned" in trait for trait in image.traits) == (orientation > 1)


def test_16_bits_are_divided_by_257(folder, make):
    values = np.array([[0, 128, 129, 257], [32767, 32896, 65534, 65535]], dtype=np.uint16)
    expected = np.rint(values / 257).astype(np.uint8)
    for end in ("png", "tiff", "pgm"):
        image = decoded(make.save(folder / f"wide.{end}", values))
        np.testing.assert_array_equal(image.pixels[..., 0], expected)
        assert image.white == 65535 and image.peak == 65535


def test_other_kinds_of_pixels(folder, make):
    red = np.zeros((4, 4, 3), dtype=np.uint8)
    red[..., 0] = 200
    plain = Image.fromarray(red)
    palette = decoded(make.save(folder / "p.png", plain.quantize(4)))
    np.testing.assert_array_equal(palette.pixels, red)
    assert "mode P" in palette.traits[0]
    cmyk = decoded(make.save(folder / "c.tiff", plain.convert("CMYK")))
    assert "CMYK" in cmyk.traits[0] and np.abs(cmyk.pixels.astype(int) - red).max() <= 2
    bit = decoded(make.save(folder / "1.png", Image.fromarray(np.eye(4) > 0)))
    np.testing.assert_array_equal(bit.pixels[..., 0], 255 * np.eye(4))
    assert bit.traits == ("of Pillow's mode 1, converted to gray or RGB",)
    frames = decoded(
        make.save(folder / "f.gif", plain, save_all=True, append_images=[Image.new("RGB", (4, 4))])
    )
    np.testing.assert_array_equal(frames.pixels, red)
    assert any("several frames" in trait for trait in frames.traits)


def test_transparent_pixels_are_put_on_black(folder, make):
    values = np.full((2, 2, 4), 100, dtype=np.uint8)
    values[..., 3] = [[0, 255], [128, 255]]
    image = decoded(make.save(folder / "a.png", values))
    np.testing.assert_array_equal(image.pixels[..., 0], [[0, 100], [50, 100]])
    assert image.traits == ("with transparent pixels, on a black background",)
    values[..., 3] = 255
    assert decoded(make.save(folder / "b.png", values)).traits == ()
    masked = make.save(folder / "c.png", Image.fromarray(make.pixels(1)), transparency=7)
    assert decoded(masked).pixels.shape == (8, 8, 1)


@pytest.mark.parametrize("size", [(6, 10), (7, 3)])
def test_the_central_square_is_taken(size, make):
    height, width = size
    edge = min(size)
    array = make.pixels(0, (*size, 3))
    top, left = (height - edge) // 2, (width - edge) // 2
    middle = array[top : top + edge, left : left + edge]
    np.testing.assert_array_equal(square(array, edge), middle)
    half = square(array, 2)
    expected = np.asarray(
        Image.fromarray(np.ascontiguousarray(middle)).resize((2, 2), Image.Resampling.BILINEAR)
    )
    np.testing.assert_array_equal(half, expected)
    np.testing.assert_array_equal(square(array[..., :1], 2)[..., 0], half[..., 0])


def pictures(paths):
    return [Picture(path, Occurrence("", "train", "", path.name)) for path in paths]


def read(paths, **options):
    findings = Findings()
    return read_pictures(pictures(paths), DataOptions(path="mine", **options), findings), findings


def test_one_colored_image_makes_all_rgb(folder, make):
    gray = [make.save(folder / f"{number}.png", make.pixels(number)) for number in range(3)]
    equal = make.save(folder / "equal.png", np.repeat(make.pixels(7)[..., None], 3, axis=2))
    alone, _ = read([*gray, equal])
    assert alone.x.shape == (4, 8, 8, 1)
    np.testing.assert_array_equal(alone.x[3, ..., 0], make.pixels(7))
    colored = make.save(folder / "colored.png", make.pixels(8, (8, 8, 3)))
    for order in ([*gray, colored], [colored, *gray]):
        together, findings = read(order)
        assert together.x.shape == (4, 8, 8, 3) and findings.notes == ["Images are 8 x 8, RGB."]
        for row, path in enumerate(order):
            stored = np.asarray(Image.open(path).convert("RGB"))
            np.testing.assert_array_equal(together.x[row], stored)
    luma, _ = read([colored], color="gray")
    np.testing.assert_array_equal(luma.x[0, ..., 0], np.asarray(Image.open(colored).convert("L")))
    assert read(gray, color="rgb")[0].x.shape == (3, 8, 8, 3)


def test_sizes_that_differ_are_named(folder, make):
    paths = [make.save(folder / f"{n}.png", make.pixels(n, (8, 8 + n // 3))) for n in range(4)]
    none, findings = read(paths)
    (problem,) = findings.errors
    assert none is None and problem.kind == "image_sizes" and problem.path == "3.png"
    assert "8 x 8: 3" in problem.message and "9 x 8: 1 (such as '3.png')" in problem.message
    assert "data.image_size, such as 8" in problem.message
    brought, findings = read(paths, image_size=16)
    assert brought.x.shape == (4, 16, 16, 1) and not findings.problems
    assert any("2 sizes from 8 x 8 to 9 x 8" in note for note in findings.notes)
    assert any(note.startswith("4 images were smaller") for note in findings.notes)


def test_a_single_small_picture_does_not_decide_the_size(folder, make):
    sizes = [(1, 1), (8, 9), (8, 9)]
    paths = [make.save(folder / f"{n}.png", make.pixels(n, size)) for n, size in enumerate(sizes)]
    _, findings = read(paths)
    (problem,) = findings.errors
    assert "data.image_size, such as 8" in problem.message
    assert not any(note.startswith("Images are") for note in findings.notes)


def test_what_cannot_be_read_is_left_out(folder, make):
    paths = [make.save(folder / f"{n}.png", make.pixels(n)) for n in range(3)]
    paths[1].write_bytes(b"")
    found, findings = read(paths)
    assert found.rows == [0, 2] and list(found.digests) == ["0.png", "2.png"]
    np.testing.assert_array_equal(found.x[1, ..., 0], make.pixels(2))
    assert findings.counts == {("skipped", "empty_file"): 1}


def test_a_file_that_may_not_be_read(folder, make, monkeypatch):
    path = make.save(folder / "1.png", make.pixels(1))

    def refuse(path, flags):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)  # root could read it whatever its mode
    with pytest.raises(Unusable, match="Permission denied") as caught:
        decoded(path)
    assert caught.value.kind == "unreadable_file"


@pytest.mark.parametrize(("peak", "warned"), [(1, True), (63, True), (64, False)])
def test_images_far_from_white_are_pointed_out(peak, warned, folder, make):
    paths = [make.save(folder / "black.png", np.zeros((8, 8), np.uint8))]
    for end, shape in (("png", (8, 8)), ("bmp", (8, 8, 3))):
        paths.append(make.save(folder / f"dark.{end}", np.full(shape, peak, np.uint8)))
    _, findings = read(paths)
    dark = [problem for problem in findings.problems if problem.kind == "dark_images"]
    assert len(dark) == warned and all(f"is {peak}," in one.message for one in dark)
    _, findings = read([*paths, make.save(folder / "bright.png", make.pixels(1))])
    assert "dark_images" not in {problem.kind for problem in findings.problems}, (
        "one bright image: white is known"
    )


def test_too_many_bytes_are_refused_before_memory_is_taken(folder, make, monkeypatch):
    monkeypatch.setattr(images, "MAX_STACK_BYTES", 100)
    none, findings = read([make.save(folder / "1.png", make.pixels(1))])
    assert none is None and findings.errors[0].kind == "too_large"
    assert read([folder / "1.png"], image_size=4)[0].x.shape == (1, 4, 4, 1)


def test_random_bytes_never_raise_anything_else(folder, make, capfd):
    """Every kind of file, with bytes changed or cut off, is read or refused."""
    generator = np.random.default_rng(0)
    color = Image.fromarray(make.pixels(3, (16, 16, 3)))
    refused = 0
    for end in ("png", "jpg", "bmp", "gif", "tiff", "webp", "ppm"):
        path = make.save(folder / f"good.{end}", color)
        good = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        for _ in range(15):
            bad = good[: generator.integers(1, len(good) + 1)].copy()
            places = generator.integers(0, min(len(bad), 120), 3)
            bad[places] = generator.integers(0, 256, 3)
            path.write_bytes(bad.tobytes())
            try:
                assert decoded(path).pixels.dtype == np.uint8
            except Unusable as error:
                refused += 1
                assert error.kind in {
                    "not_an_image",
                    "truncated_image",
                    "damaged_image",
                    "image_too_large",
                    "unsupported_image",
                }
    assert refused > 40 and capfd.readouterr().err == ""
