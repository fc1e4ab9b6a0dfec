"""Long lines are broken between words, below their label; short ones and wide terminals leave them."""

from pathlib import Path

from blinkccl.show.plan_text import plan_text
from blinkccl.show.text import fit
from blinkccl.trees.forest.document import from_document

PLAN = Path(__file__).parents[1] / "trees/forest/plans/allreduce-dgx1v-1456.json"

LONG = "proof   no schedule of unicast store-and-forward trees on these links is faster than this one"


def test_lines_stay_whole_without_a_width_or_need():
    assert fit(LONG + "\n", None) == LONG + "\n"
    assert fit(LONG, 200) == LONG


def test_long_lines_are_indented_below_their_label():
    assert fit(f"short\n{LONG}\n", 60) == (
        "short\nproof   no schedule of unicast store-and-forward trees on\n"
        "        these links is faster than this one\n"
    )


def test_escape_codes_do_not_break_a_line_that_fits():
    painted = f"\x1b[1m{'x ' * 29}x\x1b[0m"
    assert fit(painted, 60) == painted


def test_no_width_is_too_small():
    assert fit(LONG, 1) == fit(LONG, 40)
    assert all(len(line) <= 40 for line in fit(LONG, 1).split("\n"))


def test_a_plan_on_a_narrow_terminal_has_no_bars():
    forest = from_document(PLAN.read_bytes())
    wide, narrow = plan_text(forest), plan_text(forest, width=60)
    assert max(map(len, narrow.splitlines())) <= 60
    assert "█" in wide
    assert "█" not in narrow
    assert [line for line in wide.splitlines() if "└─" in line] == [
        line for line in narrow.splitlines() if "└─" in line
    ]
    assert plan_text(forest, width=200) == wide
