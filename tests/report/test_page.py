"""Templates and plots: escaping, missing figures, strict variables, strict JSON."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree

import pytest
from jinja2 import UndefinedError

from specpilot_sglang.eval.report import page, plots

NAN = math.nan


@pytest.fixture
def template(monkeypatch, tmp_path):
    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        real = page.resources.files
        monkeypatch.setattr(page.resources, "files", lambda package: tmp_path if package == "mine" else real(package))
        return name

    return write


def test_html_is_escaped_and_markdown_is_not(template):
    page_name = template("a.html.j2", '{% extends "base.html.j2" %}{% block body %}{{ x }}{% endblock %}')
    assert "&lt;b&gt;" in page.render("mine", page_name, {"x": "<b>"})
    assert page.render("mine", template("a.md.j2", "{{ x }}"), {"x": "<b>"}) == "<b>"


def test_a_variable_that_is_missing_is_an_error(template):
    with pytest.raises(UndefinedError):
        page.render("mine", template("a.md.j2", "{{ typo }}"), {})


def test_missing_figures_are_dashes():
    assert [page.figure(v) for v in (None, NAN, 1.239)] == ["–", "–", "1.24"]
    assert [page.percent(v, 1) for v in (None, 0.123)] == ["–", "12.3%"]


def test_plain_values_are_strict_json():
    row = page.plain({"a": [NAN, 1.0, (math.inf, "x")], 3: None})
    assert json.dumps(row, allow_nan=False) == '{"a": [null, 1.0, [null, "x"]], "3": null}'


@pytest.mark.parametrize(
    "svg",
    [
        lambda: plots.intervals(
            [plots.Interval("a", 1.2, 1.1, 1.3), plots.Interval("b", 0.9, NAN, NAN)], label="ratio"
        ),
        lambda: plots.histogram({"a": [5, 3, 0], "b": [1]}, label="n", unit="%"),
        lambda: plots.stacked({"a": {"x": 1.0, "y": 2.0}, "b": {"x": 3.0}}, label="ms"),
        lambda: plots.history(
            [plots.Line("a", [1, 2, 3], [2]), plots.Line("b", [2])], label="v", ticks=["1", "2", "3"]
        ),
        lambda: plots.history([plots.Line("a", [1.0])], label="v", ticks=["1"]),
    ],
)
def test_plots_are_whole_svg_images_that_need_nothing_else(svg):
    image = svg()
    root = ElementTree.fromstring(image)
    assert root.tag.endswith("svg")
    assert b"http" not in image.replace(b"http://www.w3.org/", b"").replace(b"http://purl.org/", b"").replace(
        b"http://creativecommons.org/", b""
    ).replace(b"https://matplotlib.org/", b"")
    assert svg() == image  # reports of the same figures are the same file
    assert page.data_uri(image).startswith("data:image/svg+xml;base64,")
