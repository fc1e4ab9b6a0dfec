"""The models beside published measurements: no error exceeds that of the committed page."""

import re

import pytest

import models

#: Figures whose rows the test recomputes, in two seconds.
FIGURES = tuple(models.figures())
#: The page rounds to tenths of a percent.
ROUNDED = 0.001


def _page() -> dict[tuple[str, ...], float]:
    """The error of each row, by job, collective, size, contender and published figure."""
    errors = {}
    for line in models.PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 9 and re.fullmatch(r"[+-][\d.]+%", cells[7]):
            errors[tuple(cells[1:6])] = float(cells[7].rstrip("%")) / 100
    return errors


def test_every_figure_has_its_row() -> None:
    rows = [models.Judged(one, one.published, "") for one in FIGURES]
    expected = {tuple(cell.strip() for cell in line.split("|")[2:7]) for line in models.table(rows)[2:]}
    assert set(_page()) == expected
    assert len(expected) == len(FIGURES)


def test_no_error_grows() -> None:
    """The error of every figure equals the page's. A smaller error makes the page wrong too: write it anew."""
    page = _page()
    for one in FIGURES:
        judged = models.judge(one)
        (line,) = models.table([judged])[2:]
        stated = page[tuple(cell.strip() for cell in line.split("|")[2:7])]
        assert judged.error == pytest.approx(stated, abs=ROUNDED), line


def test_the_aim_and_its_misses() -> None:
    """The median error of the page meets the aim; all misses are at the top, the largest first."""
    errors = sorted(abs(error) for error in _page().values())
    assert errors[len(errors) // 2] <= models.MEDIAN
    text = models.PAGE.read_text(encoding="utf-8")
    marks = [
        line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ") and line.count("|") == 10
    ]
    misses = marks.count("miss")
    assert marks[1 : 1 + misses] == ["miss"] * misses, "after the heading"
    assert f"({misses} here)" in text
