"""The reader of Tiny ImageNet and the reading of image files, on synthetic pictures."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedtailor.core.errors import DataError
from fedtailor.data import load_dataset
from fedtailor.data.datasets.tiny_imagenet import load_tiny_imagenet
from fedtailor.data.readers import pictures_folder

CLASSES = {
    "n02124075": "Egyptian cat",
    "n01443537": "goldfish, Carassius auratus",
    "n04067472": "reel",
}
ANNOTATIONS = "val_1.JPEG\tn01443537\t0\t32\t44\t62\nval_0.JPEG\tn04067472\t52\t55\t57\t59\n"


def save(
    path: Path, color: int | tuple[int, int, int], *, size: tuple[int, int] = (64, 64)
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = "L" if isinstance(color, int) else "RGB"
    Image.new(mode, size, color).save(path, "JPEG", quality=95)
    return path


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Write a folder with three classes, two training pictures of each and two of test."""
    place = tmp_path / "tiny-imagenet-200"
    for number, wnid in enumerate(CLASSES):
        for picture in (0, 10):
            save(place / f"train/{wnid}/images/{wnid}_{picture}.JPEG", (60 * number, picture, 200))
    (place / "train/n02124075/n02124075_boxes.txt").write_text("n02124075_0.JPEG\t0\t10\t63\t58\n")
    save(place / "val/images/val_0.JPEG", 77)
    save(place / "val/images/val_1.JPEG", (250, 5, 5))
    (place / "val/val_annotations.txt").write_text(ANNOTATIONS)
    (place / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in CLASSES))
    words = "".join(f"{wnid}\t{name}\n" for wnid, name in sorted(CLASSES.items()))
    (place / "words.txt").write_text(f"n00001740\tentity\n{words}")
    return place


def test_rows_follow_the_list_of_classes_and_sorted_names(tmp_path: Path, tiny: Path) -> None:
    dataset = load_dataset("tiny_imagenet", tmp_path)
    assert dataset.class_names == tuple(CLASSES.values()) and dataset.num_classes == 3
    assert dataset.y.tolist() == [0, 0, 1, 1, 2, 2, 2, 1] and dataset.num_official_train == 6
    assert (
        dataset.subset and dataset.tested_on == "synthetic" and dataset.input_shape == (3, 64, 64)
    )
    red, green = dataset.x[:6, 0, 0, 0].astype(int), dataset.x[:6, 0, 0, 1].astype(int)
    np.testing.assert_allclose(red, [0, 0, 60, 60, 120, 120], atol=3)
    np.testing.assert_allclose(green, [0, 10] * 3, atol=3)
    assert len(dataset.sources) == 4


def test_pictures_are_counted_while_they_are_read(tmp_path: Path, tiny: Path) -> None:
    told: list[tuple[str, int, int]] = []
    load_dataset("tiny_imagenet", tmp_path, lambda *values: told.append(values))
    assert told == [("reading pictures", done, 8) for done in range(1, 9)]


def test_gray_becomes_color(tmp_path: Path, tiny: Path) -> None:
    gray = load_tiny_imagenet(tmp_path).x[6]
    assert (gray == gray[..., :1]).all() and abs(int(gray[0, 0, 0]) - 77) < 2


def test_the_noted_digest_changes_with_content_and_name(tmp_path: Path, tiny: Path) -> None:
    key, path = "tiny-imagenet-200/**/*.JPEG", tiny / "train/n01443537/images/n01443537_0.JPEG"
    digests = {load_tiny_imagenet(tmp_path).sources[key]}
    path.write_bytes(path.read_bytes() + b"\0")
    digests.add(load_tiny_imagenet(tmp_path).sources[key])
    path.rename(path.with_name("n01443537_00.JPEG"))
    digests.add(load_tiny_imagenet(tmp_path).sources[key])
    assert len(digests) == 3


def test_fewer_pictures_are_enough(tmp_path: Path, tiny: Path) -> None:
    (tiny / "val/images/val_1.JPEG").unlink()
    (tiny / "train/n01443537/images/n01443537_0.JPEG").unlink()
    (tiny / "train/n01443537/images/._n01443537_10.JPEG").write_bytes(
        b"hidden files of other systems are left out"
    )
    assert load_tiny_imagenet(tmp_path).y.tolist() == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize("file", ["wnids.txt", "words.txt", "val/val_annotations.txt"])
def test_a_missing_list_is_named(tmp_path: Path, tiny: Path, file: str) -> None:
    (tiny / file).unlink()
    with pytest.raises(DataError, match="was not found in") as caught:
        load_tiny_imagenet(tmp_path)
    assert caught.value.path == str(tiny / file)


def test_no_training_picture_is_a_missing_file(tmp_path: Path, tiny: Path) -> None:
    (tiny / "train").rename(tiny / "other")
    with pytest.raises(DataError, match=r"n02124075_0\.JPEG' was not found in"):
        load_tiny_imagenet(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("wnids.txt", "", "expected different classes, one in each line, got 0 lines"),
        ("wnids.txt", "n02124075\nn02124075\n", "got 2 lines, 1 classes"),
        (
            "wnids.txt",
            "../../etc\n",
            "expected a class such as n01443537 in line 1, got '../../etc'",
        ),
        ("wnids.txt", "\udcff", "expected text in UTF-8"),
        ("words.txt", "n02124075 cat\n", "a tab and its meaning in line 1"),
        (
            "words.txt",
            "n02124075\tcat\n",
            "expected a meaning for each class of wnids.txt, got none for n01443537",
        ),
        ("words.txt", "n02124075\tcat\nn02124075\tdog\n", "expected one printable meaning"),
        ("words.txt", "n02124075\tc\x1bat\n", "expected one printable meaning"),
        (
            "val/val_annotations.txt",
            ANNOTATIONS + "../x.JPEG\tn04067472\t1\t2\t3\t4\n",
            "in line 3, got '../x.JPEG",
        ),
        (
            "val/val_annotations.txt",
            ANNOTATIONS + "/x.JPEG\tn04067472\t1\t2\t3\t4\n",
            "expected a file name without",
        ),
        ("val/val_annotations.txt", "val_0.JPEG\tn04067472\n", "a class and four numbers"),
        (
            "val/val_annotations.txt",
            ANNOTATIONS + "val_9.JPEG\tn99999999\t1\t2\t3\t4\n",
            "got n99999999 for val_9",
        ),
        (
            "val/val_annotations.txt",
            ANNOTATIONS + "val_0.JPEG\tn01443537\t1\t2\t3\t4\n",
            "got two for val_0.JPEG",
        ),
        (
            "val/val_annotations.txt",
            ANNOTATIONS[: ANNOTATIONS.index("\n") + 1],
            "expected a line for each picture of val/images, got none for",
        ),
    ],
)
def test_damaged_lists_are_refused(
    tmp_path: Path, tiny: Path, file: str, text: str, sentence: str
) -> None:
    (tiny / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError) as caught:
        load_tiny_imagenet(tmp_path)
    assert sentence in caught.value.message and caught.value.path == str(tiny / file)
    assert caught.value.message.isprintable()


def test_a_class_folder_that_is_not_listed_is_refused(tmp_path: Path, tiny: Path) -> None:
    (tiny / "train/n00000000").mkdir()
    with pytest.raises(
        DataError, match=r"expected folders of classes in wnids\.txt, got 'n00000000'"
    ):
        load_tiny_imagenet(tmp_path)


def bomb(width: int, height: int) -> bytes:
    """Return a PNG file that announces a size and has next to no content."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def jpeg(size: tuple[int, int]) -> bytes:
    stream = io.BytesIO()
    Image.effect_noise(size, 90).save(stream, "JPEG")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "got another format, or a damaged beginning"),
        (b"no picture", "got another format, or a damaged beginning"),
        (
            bomb(64, 64),
            "got another format, or a damaged beginning",
        ),  # PNG is none of the formats here
        (jpeg((64, 64))[:700], "truncated"),
        (jpeg((64, 63)), "expected a picture of 64x64 pixels, got 64x63"),
        (bytes(2**16 + 1), "expected at most 65536 bytes, got more"),
    ],
)
def test_damaged_pictures_are_refused(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes, sentence: str
) -> None:
    monkeypatch.setattr(pictures_folder, "_MAX_BYTES", 2**16)
    path = tiny / "train/n01443537/images/n01443537_10.JPEG"
    path.write_bytes(raw)
    with pytest.raises(DataError) as caught:
        load_tiny_imagenet(tmp_path)
    assert sentence in caught.value.message and caught.value.path == str(path)
    assert (
        " 0x" not in caught.value.message
    )  # the address of an object would differ from run to run


def test_the_first_of_several_damaged_pictures_is_named(tmp_path: Path, tiny: Path) -> None:
    paths = [tiny / f"train/{wnid}/images/{wnid}_0.JPEG" for wnid in CLASSES]
    for path in paths:
        path.write_bytes(b"no picture")
    with pytest.raises(DataError) as caught:
        load_tiny_imagenet(tmp_path)
    assert caught.value.path == str(paths[0])


@pytest.mark.parametrize(("width", "height"), [(10_000, 9_000), (12_000, 12_000), (60_000, 60_000)])
def test_a_decompression_bomb_is_refused_unpacked(tmp_path: Path, width: int, height: int) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(width, height))
    with pytest.raises(DataError, match=r"at most 80000000 pixels|DecompressionBombError"):
        pictures_folder.read_pictures(
            [path], folder=tmp_path, side=8, formats=("PNG",), fit=lambda image, _: image
        )
