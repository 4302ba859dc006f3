"""The charts of reports and data: what is drawn, in which colors and files, and that names stay
names."""

import io
import json
import re
from xml.etree import ElementTree

import altair as alt
import numpy as np
import pytest
from PIL import Image

from fedtailor.core.errors import ConfigError, RunError
from fedtailor.report import charts, data_plots
from fedtailor.report.charts import DARK, LIGHT, CurvePoint, curves, labels, sorted_bars
from fedtailor.report.page.files import write_figure
from fedtailor.report.parts import Figure, Panel

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "' + alert(1) + '",
    "a\x1b[31m\x00\n\u202eb\ufffe",
    "not utf-8: \udcff",
    "datum['x'] {{datum}} ${1} var(--ink) var(--alert)",
    "Ω" * 300,
]


def rows_of(chart):
    """Return the data of every layer that has some of its own, in the order of the chart."""
    return list(chart.to_dict()["datasets"].values())


def hostile_figure():
    counts = np.ones((len(HOSTILE), len(HOSTILE)), int)
    return data_plots.bubbles(counts, client_names=HOSTILE, class_names=HOSTILE, title=HOSTILE[0])


def contrast(one, other):
    def luminance(color):
        parts = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_colors_have_enough_contrast(colors):
    for name, color in colors.items():
        if name not in ("paper", "grid"):
            assert contrast(color, colors["paper"]) >= 4.5, name


def test_labels_are_short_visible_and_all_different():
    short = labels(["a", "a", "a (2)", "b" * 100, "b" * 101, "\n"])
    assert len(set(short)) == 6 and short[:2] == ["a", "a (2)"]
    assert short[3] == "b" * 27 + "…" and short[5] == r"\x0a"


def test_bars_are_sorted_few_have_names_and_many_are_thinned():
    (few,) = rows_of(sorted_bars([("a", 1.0), ("b", -2.0)], "points", by_sign=True))
    assert [(row["label"], row["value"], row["sign"]) for row in few] == [
        ("a", 1.0, "positive"),
        ("b", -2.0, "negative"),
    ]
    many = sorted_bars([(str(number), number) for number in range(1000)], "points")
    (rows,) = rows_of(many)
    assert len(rows) <= 300 and rows[-1]["name"] == "0"
    assert "label" not in json.dumps(many.to_dict()["layer"][0]["encoding"]["x"]["field"])


def test_a_curve_needs_three_points_and_fewer_are_a_bar():
    points = [CurvePoint(number, 10.0 * number, 0.0, 90.0) for number in (1, 2, 3)]
    line = curves({"a": points, "b": points[:1]}, ["a", "b"], "accuracy, %").to_dict()
    assert [layer["mark"]["type"] for layer in line["layer"]] == ["area", "line", "circle"]
    bar = curves({"a": points[:2], "b": []}, ["a", "b"], "accuracy, %").to_dict()
    assert bar["layer"][0]["mark"]["type"] == "bar"
    ((row,),) = bar["datasets"].values()
    assert (row["name"], row["mean"]) == ("a", 20.0)

    # Clients without an answer are no value.
    away = curves({"a": [CurvePoint(1, 80.0, 80.0, 80.0, 300)]}, ["a"], "accuracy, %").to_dict()
    assert away["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0.0, pytest.approx(92.0)]


def test_no_two_of_many_series_look_the_same():
    names = [str(number) for number in range(30)]
    chart = curves({name: [CurvePoint(1, 1, 1, 1)] * 3 for name in names}, names, "x").to_dict()
    encoding = chart["layer"][1]["encoding"]
    colors = encoding["color"]["scale"]["range"]
    dashes = encoding["strokeDash"]["scale"]["range"]
    assert len({(colors[number % 8], str(dashes[number])) for number in range(30)}) == 30


def test_no_name_is_in_an_expression_or_ends_a_script():
    """Vega-Lite makes expressions of sorts and conditions: compile, and look for the names."""
    (panel,) = hostile_figure().panels
    specification = charts.page_specification(panel)
    assert "<" not in specification
    compiled = charts.vl_convert.vegalite_to_vega(specification)

    def expressions(node):
        children = node.values() if isinstance(node, dict) else node
        if isinstance(node, dict):
            yield from (node[key] for key in ("signal", "expr", "update", "test") if key in node)

        if isinstance(node, dict | list):
            for child in children:
                yield from expressions(child)

    texts = [text for text in expressions(compiled) if isinstance(text, str)]
    assert texts and not any("alert" in text or "onerror" in text for text in texts)


def test_hostile_names_in_files():
    figure = hostile_figure()
    drawing = ElementTree.fromstring(charts.picture(figure, "svg"))
    tags = {element.tag.split("}")[1] for element in drawing.iter()}
    assert not {"script", "img", "foreignObject", "a"} & tags
    text = " ".join(element.text or "" for element in drawing.iter())
    circles = [element.get("d", "") for element in drawing.iter() if element.get("d")]
    assert sum("A" in path for path in circles) >= len(HOSTILE) ** 2  # none without a size
    assert r"\x1b" in text and "var(--alert)" not in "".join(drawing.attrib.values())
    assert charts.picture(figure, "pdf").startswith(b"%PDF")
    with Image.open(io.BytesIO(charts.picture(figure, "png"))) as image:
        assert image.format == "PNG" and image.width > 1000


def test_files_are_in_light_colors_and_pages_in_variables():
    chart = sorted_bars([("a", 1.0)], "points")
    panel = Panel(chart=chart, title="one")
    svg = charts.picture(
        Figure(name="a", title="T <1>", caption="", panels=[panel, panel]), "svg"
    ).decode()
    assert "var(" not in svg and LIGHT["s0"] in svg and "T &lt;1&gt;" in svg
    assert "var(--s0)" in charts.page_svg(panel, is_alone=True)
    specification = json.loads(charts.page_specification(panel))
    assert specification["width"] == "container" and "$schema" not in specification


def test_nothing_global_is_changed():
    assert alt.theme.active == "default" and alt.data_transformers.options == {}


@pytest.mark.parametrize("name", ["picture.jpg", "picture", "picture.png.gz"])
def test_other_endings_are_refused(tmp_path, name):
    with pytest.raises(ConfigError) as caught:
        write_figure(hostile_figure(), tmp_path / name)
    assert ".html, .pdf, .svg, .png" in caught.value.allowed and not list(tmp_path.iterdir())


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "picture.svg"
    path.write_text("before")
    figure = data_plots.bubbles(np.zeros((2, 2), int))  # a federation without examples
    write_figure(figure, path)
    assert path.read_text().startswith("<svg") and list(tmp_path.iterdir()) == [path]
    with pytest.raises(RunError):
        write_figure(figure, tmp_path / "nowhere" / "picture.svg")


def test_classes_are_counted_per_client():
    parts = [np.array([0, 1, 4]), np.array([], np.int64), np.array([3])]
    counts = data_plots.count_classes(parts, np.array([2, 0, 1, 1, 2]), 4)
    assert counts.tolist() == [[1, 0, 2, 0], [0, 0, 0, 0], [0, 1, 0, 0]]


def test_a_bubble_per_count_and_axes_in_order():
    figure = data_plots.bubbles(
        np.array([[5, 0, 1], [0, 3, 0]]), class_names=["zebra", "cat", "ant"]
    )
    (panel,) = figure.panels
    (rows,) = rows_of(panel.chart)
    assert [(row["client"], row["class"], row["examples"]) for row in rows] == [
        ("0", "zebra", 5),
        ("0", "ant", 1),
        ("1", "cat", 3),
    ]
    encoding = panel.chart.to_dict()["encoding"]
    assert encoding["x"]["scale"]["domain"] == ["0", "1"]
    assert encoding["y"]["scale"]["domain"] == ["zebra", "cat", "ant"]
    assert figure.table.rows == [["0", 6, 5, 0, 1], ["1", 3, 0, 3, 0]]


def test_more_than_a_page_holds_is_left_out_and_said():
    figure = data_plots.bubbles(np.ones((130, 3), int))
    (rows,) = rows_of(figure.panels[0].chart)
    assert len(rows) == 300 and "first 100" in figure.caption
    assert len(figure.table.rows) == 130 and figure.panels[0].min_width >= 1000


def test_wide_bubbles_scroll_and_expressions_hold_numbers_only():
    chart = data_plots.bubbles(np.ones((3, 2), int)).panels[0].chart.to_dict()
    (largest,) = [one for one in chart["encoding"]["size"]["scale"]["range"] if one != 0]
    assert re.fullmatch(r"[\d.]+ \* pow\(0\.55 \* min\(24, width / 3\), 2\)", largest["expr"])
