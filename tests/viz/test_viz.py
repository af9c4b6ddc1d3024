"""The book's look, its sliders and its glued values."""

from __future__ import annotations

import base64
import io
import itertools
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

matplotlib.use("Agg")

from deqbook.viz import (
    StaticSlider,
    band,
    environment,
    explore,
    glue,
    gluing,
    graded,
    known_looks,
    label_curve,
    look,
    reference_slope,
    scientific,
    slider,
    style,
    use_style,
)

MODELS = ("ReLUImplicit", "VanillaDEQ", "MonDEQ", "OptEq", "DeepOptEq", "ResidualCell")
SOLVERS = (
    "Picard",
    "Anderson",
    "Broyden",
    "Newton",
    "ForwardBackward",
    "PeacemanRachford",
    "DouglasRachford",
)
ROLES = ("measured", "bound", "control")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(environment.STATIC_VARIABLE, raising=False)
    use_style()
    yield
    assert plt.get_fignums() == [], "a figure was left open"
    matplotlib.rcdefaults()


@pytest.fixture
def ax() -> Iterator[Any]:
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def parabola(power: float) -> Figure:
    figure, axes = plt.subplots()
    x = np.linspace(0, 1, 30)
    axes.plot(x, x**power)
    return figure


def small(values: tuple[float, ...] = (1.0, 2.0, 4.0), **change: Any) -> StaticSlider:
    options: dict[str, Any] = {"label": "power p", "alt": "curve of power {value}", "width": 320}
    made = explore(parabola, values, **(options | change))
    assert isinstance(made, StaticSlider)
    return made


# --- style -----------------------------------------------------------------------------------


def svg_bytes() -> bytes:
    figure = parabola(2.0)
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    plt.close(figure)
    return file.getvalue()


def test_same_figure_gives_same_small_svg() -> None:
    first = svg_bytes()
    assert first == svg_bytes()
    assert len(first) < 40_000
    assert b"<text" not in first


def test_style_ignores_a_readers_own_settings() -> None:
    matplotlib.rcParams["font.size"] = 30
    matplotlib.rcParams["axes.grid"] = True
    use_style()
    assert matplotlib.rcParams["font.size"] == 13
    assert not matplotlib.rcParams["axes.grid"]


def test_every_figure_of_one_figsize_has_one_width(ax: Any) -> None:
    ax.set_ylabel("a long label\non two lines")
    assert matplotlib.rcParams["savefig.bbox"] is None
    assert matplotlib.rcParams["figure.constrained_layout.use"]


def test_all_names_have_a_look_that_plot_accepts(ax: Any) -> None:
    assert set(known_looks()) == {*MODELS, *SOLVERS, *ROLES}
    for name in known_looks():
        ax.plot([0, 1], [0, 1], **look(name))


def test_unknown_look_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"'Andersen'.*Picard, Anderson") as error:
        look("Andersen")
    assert "ResidualCell" in str(error.value)


def test_measurements_are_solid_and_bounds_dashed() -> None:
    for name in (*MODELS, *SOLVERS, "measured"):
        assert look(name)["linestyle"] == "-"
    assert look("bound")["linestyle"] == "--"
    for name in (*MODELS, *SOLVERS):
        dashed = look(name, bound=True)
        assert dashed["linestyle"] == "--"
        assert dashed["color"] == look(name)["color"]


def test_looks_differ_in_more_than_colour() -> None:
    shapes = [
        (s["linestyle"], s.get("marker"), s.get("markerfacecolor") == "white")
        for s in map(look, known_looks())
    ]
    assert len(set(shapes)) == len(shapes)
    assert len({look(name)["color"] for name in known_looks()}) == len(known_looks())


# Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB.
NORMAL = np.eye(3)
DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)
PROTANOPIA = np.array(
    [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ]
)
RGB_TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def linear_rgb(colour: str) -> np.ndarray:
    c = np.array(matplotlib.colors.to_rgb(colour))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(linear: np.ndarray) -> np.ndarray:
    xyz = RGB_TO_XYZ @ np.clip(linear, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("family", [MODELS, SOLVERS, ROLES], ids=["models", "solvers", "roles"])
@pytest.mark.parametrize(
    "vision", [NORMAL, DEUTERANOPIA, PROTANOPIA], ids=["normal", "deuteranopia", "protanopia"]
)
def test_colours_of_a_family_stay_apart(family: tuple[str, ...], vision: np.ndarray) -> None:
    seen = {name: lab(vision @ linear_rgb(look(name)["color"])) for name in family}
    for a, b in itertools.combinations(family, 2):
        # About 2 units are just noticeable; two lines in one plot need many times that.
        assert np.linalg.norm(seen[a] - seen[b]) > 20, (a, b)


@pytest.mark.parametrize("name", known_looks())
def test_lines_stand_out_from_white(name: str) -> None:
    luminance = (RGB_TO_XYZ @ linear_rgb(look(name)["color"]))[1]
    assert 1.05 / (luminance + 0.05) > 2.2


# --- figures drawn more than once ------------------------------------------------------------


def test_label_stands_at_a_finite_point_of_its_curve(ax: Any) -> None:
    (line,) = ax.plot([0, 1, 2, 3], [1.0, 2.0, np.nan, np.nan], color="#123456")
    label_curve(ax, line, "end", at=1.0)
    (text,) = ax.texts
    assert text.xy == (1.0, 2.0)
    assert text.get_color() == "#123456"


def test_label_errors_name_the_value(ax: Any) -> None:
    (line,) = ax.plot([0.0], [np.nan])
    with pytest.raises(ValueError, match=r"at=1.5"):
        label_curve(ax, line, "x", at=1.5)
    with pytest.raises(ValueError, match=r"'x' has no finite point"):
        label_curve(ax, line, "x")


def test_reference_slope_is_the_stated_law(ax: Any) -> None:
    ax.set(xscale="log", yscale="log")
    line = reference_slope(ax, through=(10, 2.0), until=1000, exponent=-0.5, text="m^-1/2")
    assert line.get_ydata() == pytest.approx([2.0, 0.2])
    assert line.get_linestyle() == "--"
    ax.set(xscale="linear")
    rate = reference_slope(ax, through=(0, 1.0), until=3, factor=0.5)
    assert rate.get_ydata() == pytest.approx([1.0, 0.125])


def test_reference_slope_refuses_what_would_mislead(ax: Any) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        reference_slope(ax, through=(1, 1), until=2)
    with pytest.raises(ValueError, match=r"\('linear', 'linear'\)"):
        reference_slope(ax, through=(1, 1), until=2, exponent=1.0)


def test_band_is_median_and_range(ax: Any) -> None:
    Y = np.array([[1.0, 1.0], [2.0, 5.0], [9.0, 6.0]])
    line = band(ax, [0, 1], Y, **look("Anderson"))
    assert list(line.get_ydata()) == [2.0, 5.0]
    edges = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (1.0, 9.0)
    with pytest.raises(ValueError, match=r"\(3,\).*\(3, 2\).*one row per seed"):
        band(ax, [0, 1, 2], Y)


# --- sliders ---------------------------------------------------------------------------------


class Fragment(HTMLParser):
    """Collects elements and complains about crossing or unclosed ones."""

    VOID = frozenset({"img", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: dict[str, dict[str, str | None]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in self.found, f"second <{tag}>"
        self.found[tag] = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def frames(made: StaticSlider) -> list[dict[str, str]]:
    found = re.search(r"const frames = (\[.*\]);", made.html)
    assert found is not None
    return json.loads(found.group(1))


def test_slider_is_whole_and_accessible() -> None:
    made = small(start=1)
    found = Fragment(made._repr_html_()).found
    assert found["figure"]["class"] == "deq-explore"
    assert found["label"]["for"] == found["input"]["id"] == found["output"]["for"]
    assert (
        found["input"] | {"type": "range", "min": "0", "max": "2", "value": "1"} == found["input"]
    )
    assert found["input"]["aria-valuetext"] == "2.0"
    assert found["img"]["alt"] == "curve of power 2.0"
    assert (found["img"]["width"], found["img"]["height"]) == ("538", "346")
    assert "stopPropagation" in made.html
    assert "http" not in made.html
    assert repr(made) == "power p = 2.0: curve of power 2.0"


def test_frames_are_different_pictures_of_one_size() -> None:
    made = small()
    sources = [frame["src"] for frame in frames(made)]
    assert sources[0] == "", "the start frame is already in the <img>"
    first = Fragment(made.html).found["img"]["src"]
    assert first is not None
    sources[0] = first
    pictures = [Image.open(io.BytesIO(base64.b64decode(s.split(",")[1]))) for s in sources]
    assert {p.format for p in pictures} == {"WEBP"}
    assert {p.size for p in pictures} == {(320, 205)}
    assert len({p.tobytes() for p in pictures}) == 3
    assert [frame["text"] for frame in frames(made)] == ["1.0", "2.0", "4.0"]


def test_ids_depend_on_content_alone() -> None:
    def ident(made: StaticSlider) -> str | None:
        return Fragment(made.html).found["figure"]["id"]

    assert small().html == small().html
    different = [
        small(),
        small((1.0, 2.0)),
        small(label="exponent p"),
        small(alt="{value}"),
        small(fmt="{:.0f}"),
    ]
    assert len({ident(made) for made in different}) == len(different)


def test_alt_may_be_a_function_of_the_value() -> None:
    made = small(alt=lambda p: "straight" if p == 1 else "bent")
    assert [frame["alt"] for frame in frames(made)] == ["straight", "bent", "bent"]


def test_text_cannot_break_out_of_the_fragment() -> None:
    made = small(label='a < "b" & c', alt='</script><b>"{value}"')
    found = Fragment(made.html).found
    assert set(found) == {"figure", "img", "div", "label", "input", "output", "script"}
    assert found["img"]["alt"] == '</script><b>"1.0"'
    assert frames(made)[1]["alt"] == '</script><b>"2.0"'


def test_size_budget_is_enforced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slider, "BUDGET", 5000)
    with pytest.raises(ValueError, match=r"'power p'.*3 frames.*budget of 5 KB.*fewer values"):
        small()


def test_a_plain_slider_is_far_below_the_budget() -> None:
    made = explore(parabola, range(1, 13), label="p", alt="{value}")
    assert isinstance(made, StaticSlider)
    assert len(made.html) < slider.BUDGET / 2


def test_frames_of_different_size_are_refused() -> None:
    def draw(height: float) -> Figure:
        return plt.figure(figsize=(4, height))

    with pytest.raises(ValueError, match=r"differ in size.*same figsize"):
        explore(draw, [2.0, 3.0], label="height", alt="a box {value} tall", width=100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": ()}, "no values"),
        ({"start": 3}, r"start=3 .* 3 values"),
        ({"start": -1}, "start=-1"),
        ({"label": " "}, "label is empty"),
        ({"alt": lambda p: ""}, r"alt text for value 1.0 is empty"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**change)


def test_figure_is_closed_when_drawing_fails() -> None:
    def broken(value: float) -> Figure:
        figure = parabola(value)
        figure.text(0.5, 0.5, "$\\nonsense$")
        return figure

    with pytest.raises(ValueError, match="nonsense"):
        explore(broken, [1.0], label="p", alt="{value}")


class Kernel:
    """Just enough of a shell with a kernel."""

    kernel = object()


def test_live_control_draws_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    widgets = pytest.importorskip("ipywidgets")
    monkeypatch.setattr(environment, "shell", Kernel)
    drawn: list[float] = []

    def draw(power: float) -> Figure:
        drawn.append(power)
        return parabola(power)

    made = explore(draw, [1.0, 2.0, 4.0], label="p", alt="power {value}", start=1, width=200)
    assert isinstance(made, widgets.VBox)
    picture, control = made.children
    assert drawn == [2.0]
    before = picture.value
    control.value = 2
    assert drawn == [2.0, 4.0]
    assert picture.value != before
    assert 'alt="power 4.0"' in picture.value
    inches = plt.rcParams["figure.figsize"]
    assert 'width="{:.0f}" height="{:.0f}"'.format(*(96 * i for i in inches)) in picture.value


def test_book_build_gets_static_pages_despite_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "shell", Kernel)
    monkeypatch.setenv(environment.STATIC_VARIABLE, "1")
    assert isinstance(explore(parabola, [1.0], label="p", alt="{value}"), StaticSlider)


# --- glue ------------------------------------------------------------------------------------


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[dict, dict]]]:
    """Run inside a real IPython shell and collect what it would send to the notebook."""
    interactive = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    running = interactive.instance()
    running.display_formatter.active_types = running.display_formatter.format_types
    sent: list[tuple[dict, dict]] = []
    monkeypatch.setattr(
        running.display_pub,
        "publish",
        lambda data, metadata=None, **rest: sent.append((data, metadata or {})),
    )
    for module in (environment, gluing, style):
        monkeypatch.setattr(module, "shell", lambda: running)
    yield sent
    interactive.clear_instance()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.125, "0.125"),
        (3, "3"),
        ("two words", "'two words'"),
        (np.float64(0.5), "0.5"),
        (np.int64(7), "7"),
        (np.array(2.5), "2.5"),
    ],
)
def test_glued_values_are_plain_text_with_their_name(outputs: list, value: Any, text: str) -> None:
    glue("rate", value)
    ((data, metadata),) = outputs
    assert data["text/plain"] == f"rate = {text}"
    assert metadata["scrapbook"] == {"name": "rate", "mime_prefix": ""}


def test_glue_is_hidden_in_the_book_build(outputs: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.STATIC_VARIABLE, "1")
    glue("rate", 0.5)
    glue("seen", 0.5, display=True)
    (hidden, mark), (shown, _) = outputs
    prefix = mark["scrapbook"]["mime_prefix"]
    assert hidden == {prefix + "text/plain": "0.5"}
    assert prefix.startswith("application/")
    assert shown == {"text/plain": "0.5"}


def test_glued_figure_is_svg_and_closed(outputs: list) -> None:
    pytest.importorskip("matplotlib_inline")
    use_style()
    figure = parabola(2.0)
    glue("curve", figure)
    ((data, _),) = outputs
    assert data["image/svg+xml"].lstrip().startswith("<?xml")
    assert not plt.fignum_exists(figure.number)


def test_glued_slider_is_html(outputs: list) -> None:
    glue("slider", small())
    ((data, _),) = outputs
    assert data["text/html"].startswith('<figure class="deq-explore"')


@pytest.mark.parametrize("name", ["", "a b", "rate:.3f"])
def test_glue_names_must_fit_a_role(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        glue(name, 1.0)


def test_glue_in_a_plain_script_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    glue("rate", 0.5)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(4.2e-5, 0, "4·10⁻⁵"), (1e6, 0, "10⁶"), (0.99e-3, 0, "10⁻³"), (1.26e12, 1, "1.3·10¹²")],
)
def test_scientific_is_written_as_in_prose(value: float, digits: int, text: str) -> None:
    assert scientific(value, digits) == text


# --- series in an order ----------------------------------------------------------------------


def test_graded_looks_differ_in_lightness_and_marker() -> None:
    for n in range(1, 6):
        looks = graded(n)
        assert len({one["marker"] for one in looks}) == n
        light = [np.dot(to_rgb(one["color"]), (0.299, 0.587, 0.114)) for one in looks]
        assert all(b - a > 0.03 for a, b in itertools.pairwise(light)), light


def test_more_series_than_can_be_told_apart_are_refused() -> None:
    with pytest.raises(ValueError, match=r"graded\(6\): between 1 and 5"):
        graded(6)


def test_a_slider_says_how_small_its_letters_are() -> None:
    def draw(size: float) -> Figure:
        figure, ax = plt.subplots(figsize=(2, 1))
        ax.set_title("words", fontsize=size)
        ax.set(xticks=[], yticks=[])
        return figure

    made = explore(draw, [12, 9], label="size", alt="a title", width=96)
    assert isinstance(made, StaticSlider)
    assert 'data-type="12"' in made.html  # 9 points are 12 CSS pixels
