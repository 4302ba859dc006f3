"""The drawings: scales, ticks, and names."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from fedtailor.report.figures import scales
from fedtailor.report.figures.drawing import DARK, LIGHT, STYLE, Drawing, in_colors, shortened


def luminance(color):
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    values = sorted([luminance(one), luminance(other)])
    return (values[1] + 0.05) / (values[0] + 0.05)


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_colors_have_enough_contrast(colors):
    assert contrast(colors["ink"], colors["paper"]) > 7
    for name, color in colors.items():
        if name not in ("paper", "grid"):
            assert contrast(color, colors["paper"]) >= 4.5, name


def test_every_color_of_the_style_is_in_both_palettes():
    assert "var(" not in in_colors(STYLE, LIGHT) and "var(" not in in_colors(STYLE, DARK)


@pytest.mark.parametrize(
    ("values", "include"),
    [
        ([0.3, 0.31], []),
        ([5.0], []),
        ([], []),
        ([-3.0, 1e6], [0.0]),
        ([1e-9, 2e-9], []),
        ([0.0, 0.0], []),
    ],
)
def test_linear_scales_hold_their_values_between_round_ticks(values, include):
    scale = scales.linear(values, 0.0, 100.0, include=include)
    ticks = scale.ticks(5)
    assert 2 <= len(ticks) <= 12
    for value in [*values, *include]:
        assert -1e-6 <= scale(value) <= 100 + 1e-6
    assert ticks == sorted(ticks)


@pytest.mark.parametrize("values", [[1.0], [3.0, 4.0], [10.0, 100000.0], [1e-3, 1e3]])
def test_logarithmic_scales_have_few_ticks(values):
    scale = scales.logarithmic(values, 0.0, 100.0)
    assert 1 <= len(scale.ticks(7)) <= 7
    for value in values:
        assert 0 <= scale(value) <= 100


def test_shortened_names_are_short_and_different():
    names = [f"pfedfda (learning_rate={number / 10})" for number in range(20)]
    short = shortened(names, 16)
    assert len(set(short)) == 20 and max(map(len, short)) <= 16


def test_a_drawing_as_a_file_is_valid_and_has_title_and_description():
    drawing = Drawing(100)
    drawing.text(0, 10, 'a < b & "c" \x00')
    drawing.circle(5, 5, 2, "dot fill0", tip="<tip>")
    root = ElementTree.fromstring(drawing.standalone("T <1>", "D & E"))
    assert [child.text for child in list(root)[:2]] == ["T <1>", "D & E"]
    assert "var(" not in drawing.standalone("a", "b")


def test_series_of_the_same_color_have_other_dashes():
    drawing = Drawing(800)
    drawing.legend({number: str(number) for number in range(20)}, 0)
    samples = re.findall(
        r'<polyline class="line (line\d)"[^>]*?(?: stroke-dasharray="([^"]*)")?/>',
        drawing.inline("x"),
    )
    assert len(samples) == 20 and len(set(samples)) == 20
