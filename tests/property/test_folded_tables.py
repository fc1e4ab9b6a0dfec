"""Tables folded to the width of a terminal: no line is longer, and every word stays in its row."""

from hypothesis import given
from hypothesis import strategies as st

from blinkccl.show.text import LEAST_WIDTH, columns, fit

WORD = st.text(st.characters(categories=("Ll", "Nd")), min_size=1, max_size=9)
WORDS = st.lists(WORD, max_size=12).map(" ".join)


@st.composite
def tables(draw):
    """Header, rows, the columns that hold words, and the number of columns that identify a row."""
    count = draw(st.integers(1, 9))
    left = draw(st.sets(st.integers(0, count - 1)).map(lambda some: {*some} & {0, count - 1}))
    cells = st.tuples(*(WORDS if i in left else WORD for i in range(count)))
    return draw(cells), draw(st.lists(cells, max_size=5)), left, draw(st.integers(1, min(2, count)))


@given(tables(), st.integers(20, 140))
def test_a_table_keeps_to_the_width_and_loses_no_word(table, width):
    header, rows, left, keys = table
    by_row: dict[int, list[str]] = {}
    lines = columns(header, rows, left, width, keys, lambda row, line: by_row.setdefault(row, []).append(line) or line)
    assert max(map(len, lines)) <= max(width, LEAST_WIDTH)
    for row, cells in enumerate([header, *rows]):
        assert {word for cell in cells for word in cell.split()} == {
            word for line in by_row[row] for word in line.split()
        }


@given(tables(), st.integers(0, 9))
def test_a_table_that_fits_is_the_same_as_without_a_terminal(table, more):
    header, rows, left, keys = table
    whole = columns(header, rows, left)
    assert len(whole) == 1 + len(rows)
    room = max(len(header) * 200, max(map(len, whole))) + more
    assert columns(header, rows, left, room, keys) == whole


@given(st.lists(st.one_of(WORD, st.just(""), st.just("rate   ")), max_size=40).map(" ".join), st.integers(20, 140))
def test_a_sentence_keeps_to_the_width_and_loses_no_word(text, width):
    folded = fit(text, width)
    assert max(map(len, folded.split("\n"))) <= max(width, LEAST_WIDTH)
    assert folded.split() == text.split()
