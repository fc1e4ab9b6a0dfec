"""The models beside published measurements: no figure is farther off than the committed page says."""

from __future__ import annotations

import re

import pytest

import models

#: Figures whose rows are computed anew: all of these take two seconds.
FIGURES = tuple(models.figures())
#: The page rounds to tenths of a percent.
ROUNDED = 0.001


def _page() -> dict[tuple[str, ...], float]:
    """The error of each row, by job, collective, size, contender and what was published."""
    found = {}
    for line in models.PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 9 and re.fullmatch(r"[+-][\d.]+%", cells[7]):
            found[tuple(cells[1:6])] = float(cells[7].rstrip("%")) / 100
    return found


def test_every_figure_has_its_row() -> None:
    rows = [models.Judged(one, one.published, "") for one in FIGURES]
    expected = {tuple(cell.strip() for cell in line.split("|")[2:7]) for line in models.table(rows)[2:]}
    assert set(_page()) == expected
    assert len(expected) == len(FIGURES)


def test_no_error_grows() -> None:
    """Of every figure. A smaller error makes the page untrue too: write it anew."""
    page = _page()
    for one in FIGURES:
        judged = models.judge(one)
        (line,) = models.table([judged])[2:]
        stated = page[tuple(cell.strip() for cell in line.split("|")[2:7])]
        assert judged.error == pytest.approx(stated, abs=ROUNDED), line


def test_the_aim_and_its_misses() -> None:
    """The median of the page is what is aimed at; misses stand first, largest first, and none is hidden."""
    errors = sorted(abs(error) for error in _page().values())
    assert errors[len(errors) // 2] <= models.MEDIAN
    text = models.PAGE.read_text(encoding="utf-8")
    marks = [
        line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ") and line.count("|") == 10
    ]
    misses = marks.count("miss")
    assert marks[1 : 1 + misses] == ["miss"] * misses, "after the heading"
    assert f"({misses} here)" in text
