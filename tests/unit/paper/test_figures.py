"""The documents' figures: each drawn from computations of now, the same bytes for the same numbers, nothing cut off."""

from __future__ import annotations

import re
import sys
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import pytest

from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.paper import drawing
from blinkccl.paper import registry as figures
from blinkccl.paper.claim import Context, judge
from blinkccl.paper.registry import chosen
from blinkccl.paper.table import page
from blinkccl.report.plotting import pyplot
from blinkccl.simulate.calibration import calibration
from blinkccl.units import parse_bytes
from support.timed import with_links

FIGURES = {figure.name: figure for figure in figures.FIGURES}
#: Of each file and each kind of picture those that are computed quickly.
SAMPLE = (
    "A-fig-08",
    "A-fig-12",
    "A-fig-14",
    "A-fig-16",
    "A-fig-20",
    "A-fig-22a",
    "A-fig-26",
    "C-fig-3",
    "C-fig-6",
    "D-bandwidth",
    "E-roofline",
    "E-step",
)


def faster(name: str) -> Context:
    """With every link of one calibration a tenth faster."""
    return Context({name: with_links(calibration(name), 1.1)})


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch):
    """Draws one figure as ``blink paper`` does."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no figure can be drawn")

    def one(name: str, context: Context | None = None) -> figures.Drawn:
        monkeypatch.setattr(figures, "FIGURES", (FIGURES[name],))
        (drawn,) = figures.draw({name[0]}, context or Context())
        return drawn

    return one


@pytest.fixture(scope="module")
def kept() -> dict[str, bytes]:
    return {}


@pytest.fixture
def plain(draw, kept: dict[str, bytes]):
    """The picture of a figure with no constant changed, drawn once."""

    def one(name: str) -> bytes:
        if name not in kept:
            kept[name] = draw(name).png
        return kept[name]

    return one


def test_the_figures_wanted_are_there_in_order() -> None:
    numbers = ["05", "07", "08", *map(str, range(12, 22)), "22a", "22b", "24", "26"]
    others = ["D-latency", "D-bandwidth", "D-speedup", "E-roofline", "E-step"]
    names = [*(f"A-fig-{i}" for i in numbers), *(f"C-fig-{i}" for i in range(3, 9)), *others]
    assert [figure.name for figure in figures.FIGURES] == names
    assert all(figure.name.startswith(f"{figure.document}-") for figure in figures.FIGURES)
    assert len({figure.title for figure in figures.FIGURES}) == len(names)


@pytest.mark.parametrize("name", SAMPLE)
def test_nothing_of_a_figure_is_cut_off(name: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no figure can be drawn")
    row, plotting = FIGURES[name], pyplot()
    canvas = plotting.figure(figsize=(row.width_in, row.height_in), layout="constrained")
    try:
        basis = row.draw(canvas, Context())
        canvas.draw_without_rendering()
        around = canvas.get_tightbbox()
        assert around.x0 >= 0
        assert around.y0 >= 0
        assert around.x1 <= row.width_in
        assert around.y1 <= row.height_in
        assert all(axes.lines or axes.patches or axes.collections for axes in canvas.axes)
        assert any(axes.get_legend() for axes in canvas.axes) or canvas.legends
    finally:
        plotting.close(canvas)
    assert basis[0].isupper() or basis[0].isdigit()
    assert basis.endswith(".")


def test_a_figure_is_a_picture_with_the_same_bytes_each_time(draw) -> None:
    drawn = draw("A-fig-08")
    assert drawn == draw("A-fig-08")
    from matplotlib.image import imread

    pixels = imread(BytesIO(drawn.png), format="png")
    assert pixels.shape[:2] == (round(4.5 * 110), 8 * 110)
    assert len({tuple(pixel) for row in pixels[::4, ::4] for pixel in row.tolist()}) > 10


@pytest.mark.parametrize(
    ("name", "costs"),
    [
        ("A-fig-08", "v100-copy-engine"),
        pytest.param("A-fig-16", "p100-copy-engine", marks=pytest.mark.slow),
        ("A-fig-16", "nccl-2.4-p100"),
        pytest.param("A-fig-20", "dgx-2", marks=pytest.mark.slow),
        ("A-fig-22a", "v100-copy-engine"),
        ("C-fig-3", "mist"),
        ("C-fig-6", "cedar"),
        ("E-roofline", "h100"),
    ],
)
def test_another_calibration_moves_what_is_simulated_with_it(draw, plain, name: str, costs: str) -> None:
    moved = plain(name) != draw(name, faster(costs)).png
    assert moved


def test_theory_knows_no_calibration(draw, plain) -> None:
    before = plain("A-fig-14")
    for costs in ("v100-copy-engine", "nccl-2.4-p100"):
        moved = draw("A-fig-14", faster(costs)).png != before
        assert not moved


def test_the_page_holds_the_pictures(draw) -> None:
    drawn = [draw("A-fig-14"), draw("D-bandwidth")]
    html = page([judge(claim) for claim in chosen(["B2", "R1"])], drawn)
    pictures = re.findall('<img alt="[^"]+" src="data:image/png;base64,([^"]*)">', html)
    assert [b64decode(picture, validate=True) for picture in pictures] == [one.png for one in drawn]
    assert html.count("<figcaption>") == 2


def test_pictures_are_files_by_their_names(draw, tmp_path: Path) -> None:
    drawn = draw("A-fig-14")
    figures.save(tmp_path / "new" / "folder", [drawn])
    assert (tmp_path / "new" / "folder" / "A-fig-14.png").read_bytes() == drawn.png


def test_a_folder_that_is_a_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    with pytest.raises(UsageError, match="taken cannot be written"):
        figures.save(taken, [])


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'blink-ccl\[plot\]'"):
        figures.draw({"E"}, Context())


@pytest.mark.parametrize("size", [1, 1000, 1024, 1536, 10**6, 1 << 20, 500 * 10**6, 10**9, 1 << 30, 3 << 33])
def test_sizes_are_written_in_full(size: int) -> None:
    number, unit = drawing.size_text(size).split(" ")
    # parse_bytes knows powers of 1024 alone.
    worth = {"kB": 10**3, "MB": 10**6, "GB": 10**9}.get(unit) or parse_bytes(f"1{unit}")
    assert int(number) * worth == size
