"""Pictures of data: what is drawn, in which order, and that names from outside stay names."""

import base64
import io
import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import altair as alt
import numpy as np
import pytest
from PIL import Image

from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.data.corruptions import CORRUPTIONS
from fedtailor.data.dataset import Dataset
from fedtailor.data.plot import (
    bubbles,
    contact_sheet,
    corruption_sheet,
    count_classes,
    save,
    size_bars,
    sizes,
)
from fedtailor.data.plot.bubbles import _legend_values, _radius
from fedtailor.data.plot.sizes import bins
from fedtailor.data.plot.style import LONGEST_NAME, labels

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"; alert(1); "',
    "' + alert(1) + '",
    "a\x1b[31m\x00\n\u202eb\ufffe",
    "not utf-8: \udcff",
    "datum['x'] {{datum}} ${1}",
    "Ω" * 300,
]


def values_of(specification: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return list(specification["datasets"].values())


def test_classes_are_counted_per_client() -> None:
    parts = [np.array([0, 1, 4]), np.array([], np.int64), np.array([3])]
    counts = count_classes(parts, np.array([2, 0, 1, 1, 2]), 4)
    assert counts.tolist() == [[1, 0, 2, 0], [0, 0, 0, 0], [0, 1, 0, 0]]


def test_a_bubble_per_count_and_axes_in_order() -> None:
    specification = bubbles(
        np.array([[5, 0, 1], [0, 3, 0]]), class_names=["zebra", "cat", "ant"]
    ).to_dict()
    [rows] = values_of(specification)
    assert [(row["client"], row["class"], row["count"]) for row in rows] == [
        ("0", "zebra", 5),
        ("0", "ant", 1),
        ("1", "cat", 3),
    ]
    encoding = specification["encoding"]
    assert encoding["x"]["scale"]["domain"] == [
        "0",
        "1",
    ]  # a client or class without examples has its place too
    assert (
        encoding["y"]["scale"]["domain"] == ["zebra", "cat", "ant"]
        and not encoding["y"]["scale"]["reverse"]
    )
    assert (encoding["x"]["axis"]["title"], encoding["y"]["axis"]["title"]) == ("Client", "Class")
    assert (
        encoding["size"]["scale"]["domain"] == [0, 5] and encoding["size"]["scale"]["range"][0] == 0
    )
    assert [each["title"] for each in encoding["tooltip"]] == ["Client", "Class", "Examples"]


def test_bubbles_never_touch() -> None:
    counts = np.random.default_rng(0).dirichlet([0.1] * 40, 12).T * 1000  # (clients, classes)
    radii = _radius(counts, 10, 22) * np.sqrt(counts / counts.max())
    places = np.argwhere(counts >= 0) * (10, 22)
    distances = (
        np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1)) + np.eye(len(places)) * 1e9
    )
    gaps = distances - radii.ravel()[:, None] - radii.ravel()[None]
    assert gaps.min() > -1e-9  # and one pair does touch, or the largest is as large as may be
    assert gaps.min() < 1e-6 or radii.max() == pytest.approx(10)


@pytest.mark.slow
def test_more_than_a_page_holds_is_left_out_and_said() -> None:
    specification = bubbles(np.ones((130, 200), int), title="many").to_dict()
    assert len(values_of(specification)[0]) == 10_000  # beyond Altair's limit for tables
    assert (
        specification["title"]["subtitle"]
        == "The first 100 of 130 clients and the first 100 of 200 classes"
    )
    assert specification["encoding"]["x"]["axis"]["values"][:3] == ["0", "5", "10"]
    assert "subtitle" not in bubbles(np.ones((100, 100), int)).to_dict()["title"]


def test_a_federation_without_examples_can_be_drawn(tmp_path: Path) -> None:
    save(bubbles(np.zeros((2, 2), int)), tmp_path / "empty.svg")
    assert (tmp_path / "empty.svg").stat().st_size > 0


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        (1, [1]),
        (2, [1, 2]),
        (7, [1, 2, 5, 7]),
        (983, [100, 200, 500, 983]),
        (1003, [100, 200, 500, 1003]),
    ],
)
def test_the_legend_has_round_numbers_and_the_largest(largest: int, expected: list[int]) -> None:
    assert _legend_values(largest) == expected


def test_labels_are_short_and_all_different() -> None:
    shown = labels(["a", "a", "a (2)", "b" * 100, "b" * 101, "\n"])
    assert len(set(shown)) == 6 and shown[:2] == ["a", "a (2)"]
    assert shown[3] == "b" * (LONGEST_NAME - 1) + "…" and shown[5] == r"\x0a"


def test_histograms_share_bins_and_each_sums_to_one() -> None:
    generator = np.random.default_rng(0)
    specification = sizes(
        {"iid": np.full((3, 10), 500), "skewed": generator.geometric(1 / 500, (30, 10))}
    ).to_dict()
    panels = specification["vconcat"]
    assert [panel["title"]["text"] for panel in panels] == ["iid", "skewed"]
    assert panels[0]["title"]["subtitle"] == "500 for every client"
    assert (
        panels[0]["encoding"]["x"]["scale"]["domain"]
        == panels[1]["encoding"]["x"]["scale"]["domain"]
    )
    rows = [specification["datasets"][panel["data"]["name"]] for panel in panels]
    assert [sum(row["share"] for row in each) for each in rows] == pytest.approx([1, 1])
    assert len(rows[0]) == 1 and rows[0][0]["from"] <= 500 < rows[0][0]["to"]


@pytest.mark.parametrize(
    ("smallest", "largest"), [(0, 0), (7, 7), (500, 500), (499, 501), (1, 3200), (10**6, 10**9)]
)
def test_bins_are_few_and_hold_everything(smallest: int, largest: int) -> None:
    edges = bins(smallest, largest)
    widths = set(np.diff(edges).tolist())
    assert len(edges) <= 81 and edges[0] <= smallest and edges[-1] > largest and len(widths) == 1
    assert str(widths.pop()).rstrip("0") in ("1", "2", "5")


@pytest.mark.parametrize("channels", [1, 3])
def test_images_on_the_sheet_are_pixel_exact(channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 4, channels), dtype=np.uint8)
    sheet = contact_sheet(images, row_names=["a", "b"], column_names=["1", "1", "2"])
    pictures, rows, columns = values_of(sheet.to_dict())
    assert [row["name"] for row in rows] == ["a", "b"] and [row["name"] for row in columns] == [
        "1",
        "1",
        "2",
    ]
    for place, (row, column) in zip(pictures, np.ndindex(2, 3), strict=True):
        drawn = pixels_of(place)
        factor = drawn.shape[0] // 5
        assert drawn.shape[:2] == (5 * factor, 4 * factor) and drawn.shape[0] >= 64
        assert (drawn[::factor, ::factor].reshape(5, 4, channels) == images[row, column]).all()
        assert (drawn == drawn[::factor, ::factor].repeat(factor, 0).repeat(factor, 1)).all()


def test_a_sheet_of_corruptions_goes_down_by_kind_and_across_by_severity(tmp_path: Path) -> None:
    y = np.array([0, 0, 0, 1])
    x = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1), dtype=np.uint8)
    sheet = corruption_sheet(
        Dataset(name="toy", x=x, y=y, num_classes=2), seed=3, frost_folder=tmp_path
    ).to_dict()
    pictures, rows, columns = values_of(sheet)
    assert [row["name"] for row in rows] == [kind.replace("_", " ") for kind in CORRUPTIONS]
    assert [row["name"] for row in columns] == ["original", "1", "2", "3", "4", "5"] * 2
    assert "frost is approximate" in sheet["title"]["subtitle"]
    drawn = np.array([pixels_of(place)[::8, ::8] for place in pictures]).reshape(10, 2, 6, 8, 8)
    chosen = [
        row for row in range(4) for image in (0, 1) if (drawn[0, image, 0] == x[row, ..., 0]).all()
    ]
    assert sorted(y[chosen]) == [0, 1] and (drawn[:, :, 0] == drawn[:1, :, 0]).all()
    brighter = drawn[list(CORRUPTIONS).index("brightness")].mean(axis=(2, 3))
    assert (np.diff(brighter) > 0).all()  # severities in order, for both images


def pixels_of(place: dict[str, Any]) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(place["url"].split(",")[1]))))


@pytest.mark.parametrize(
    ("x", "white", "got"),
    [
        (np.zeros((2, 3), np.float32), 255.0, "float32"),
        (np.zeros((2, 8, 8, 1), np.uint8), 16.0, "16 for white"),
        (np.zeros((2, 8, 8, 2), np.uint8), 255.0, r"\(8, 8, 2\)"),
    ],
    ids=["table", "16 grays", "two channels"],
)
def test_what_a_run_would_not_corrupt_is_not_drawn(
    tmp_path: Path, x: np.ndarray, white: float, got: str
) -> None:
    dataset = Dataset(name="toy", x=x, y=np.zeros(2, int), num_classes=1, white=white)
    with pytest.raises(
        DataError, match=f"needs 8-bit images, gray or RGB, with 255 for white.*{got}"
    ):
        corruption_sheet(dataset, seed=0, frost_folder=tmp_path)


class Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self.open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.open = tag

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open, []).append(data)


def hostile_picture() -> Any:
    count = len(HOSTILE)
    return bubbles(
        np.ones((count, count), int), client_names=HOSTILE, class_names=HOSTILE, title=HOSTILE[0]
    )


def test_a_page_needs_no_network_and_names_stay_data(tmp_path: Path) -> None:
    save(hostile_picture(), tmp_path / "page.html")
    page = Page()
    page.feed((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.tags == ["html", "head", "meta", "meta", "title", "script", "body", "div", "script"]
    assert not {"src", "href"} & {name for name, _ in page.attributes}
    [policy] = [value for name, value in page.attributes if name == "content"]
    assert policy is not None and policy.startswith("default-src 'none';") and "http" not in policy
    assert page.texts["title"] == [HOSTILE[0]]
    call = page.texts["script"][-1]
    specification, _ = json.JSONDecoder().raw_decode(call[call.index("{") :])
    assert specification["encoding"]["x"]["scale"]["domain"] == labels(HOSTILE)
    assert specification["title"]["text"] == HOSTILE[0]


def test_hostile_names_in_lines_and_pixels(tmp_path: Path) -> None:
    save(hostile_picture(), tmp_path / "picture.svg")
    drawing = ElementTree.parse(tmp_path / "picture.svg")
    tags = {element.tag.split("}")[1] for element in drawing.iter()}
    assert not {"script", "img", "foreignObject", "a"} & tags
    texts = [element.text or "" for element in drawing.iter() if element.tag.endswith("text")]
    assert labels(HOSTILE)[1] in texts and any(r"\x1b" in text for text in texts)
    save(hostile_picture(), tmp_path / "picture.PNG")
    with Image.open(tmp_path / "picture.PNG") as image:
        assert image.format == "PNG" and image.width > 400


def test_hostile_names_of_partitions_and_rows(tmp_path: Path) -> None:
    save(sizes({name: np.array([1, 2]) for name in HOSTILE}), tmp_path / "sizes.svg")
    images = np.zeros((len(HOSTILE), 1, 2, 2, 1), np.uint8)
    save(contact_sheet(images, row_names=HOSTILE, column_names=HOSTILE[:1]), tmp_path / "sheet.svg")
    for name in ("sizes.svg", "sheet.svg"):
        tags = {element.tag.split("}")[1] for element in ElementTree.parse(tmp_path / name).iter()}
        assert not {"script", "img", "foreignObject", "a"} & tags


def test_no_name_is_in_an_expression() -> None:
    """Vega-Lite makes expressions of sort orders, conditions and the like: compile, and look for
    the names."""
    import vl_convert

    compiled = vl_convert.vegalite_to_vega(hostile_picture().to_dict())

    def expressions(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [
                str(node[key])
                for key in ("signal", "expr", "update", "test")
                if isinstance(node.get(key), str)
            ]
            return own + [each for value in node.values() for each in expressions(value)]
        return (
            [each for value in node for each in expressions(value)]
            if isinstance(node, list)
            else []
        )

    found = expressions(compiled)
    assert found and not [text for text in found if "alert" in text or "onerror" in text]


@pytest.mark.parametrize("name", ["picture.pdf", "picture", "picture.htm", "picture.png.gz"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"\.html, \.png, \.svg") as caught:
        save(bubbles(np.ones((1, 1), int)), tmp_path / name)
    assert caught.value.allowed == [".html", ".png", ".svg"] and not list(tmp_path.iterdir())


def test_files_appear_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = bubbles(np.ones((1, 1), int))
    path = tmp_path / "picture.svg"
    path.write_text("before")
    with monkeypatch.context() as patched:
        patched.setattr(
            os, "fsync", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        with pytest.raises(RunError, match="No space left"):
            save(picture, path)
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    save(picture, path)
    assert path.read_text().startswith("<svg") and list(tmp_path.iterdir()) == [path]
    with pytest.raises(RunError, match="No such file"):
        save(picture, tmp_path / "nowhere" / "picture.svg")


def test_nothing_global_is_changed_and_altair_comes_late() -> None:
    assert alt.theme.active == "default" and alt.data_transformers.options == {}
    code = "import sys, fedtailor.data, fedtailor.data.dataset; print('altair' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.slow
def test_a_long_title_gets_lines_that_fit_and_a_short_one_stays(tmp_path: Path) -> None:
    title = "digits: training examples per client and class, dirichlet(alpha=0.5, min_size=10)"
    narrow = bubbles(np.ones((2, 3), int), title=title).to_dict()["title"]["text"]
    assert " ".join(narrow) == title and len(narrow) > 2 and max(map(len, narrow)) <= 28
    assert bubbles(np.ones((80, 3), int), title=title).to_dict()["title"]["text"] == title
    save(bubbles(np.ones((2, 3), int), title=title), tmp_path / "page.html")
    assert f"<title>{title}</title>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_few_clients_get_a_bar_each() -> None:
    specification = size_bars([5, 0, 9], ["north", "south", "east"]).to_dict()
    [rows] = values_of(specification)
    assert [(row["client"], row["count"]) for row in rows] == [
        ("north", 5),
        ("south", 0),
        ("east", 9),
    ]
    bars = specification["layer"][0]
    assert bars["mark"]["type"] == "bar" and bars["encoding"]["y"]["scale"]["domain"] == [
        "north",
        "south",
        "east",
    ]
    assert bars["encoding"]["x"]["scale"]["domain"] == [0, 9]
    [numbered] = values_of(size_bars([1, 1]).to_dict())
    assert [row["client"] for row in numbered] == ["0", "1"]


@pytest.mark.parametrize("module", ["altair", "vl_convert"])
def test_without_the_drawing_libraries_one_sentence_says_what_to_install(module: str) -> None:
    code = (
        f"import sys; sys.modules['{module}'] = None\n"
        "from fedtailor.core.errors import ConfigError\n"
        "try:\n    import fedtailor.data.plot\n"
        "except ConfigError as error:\n    print(error.message)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    expected = f'drawing needs {module}, which is not installed: pip install "fedtailor[plot]".'
    assert done.stdout.strip() == expected, done.stderr
