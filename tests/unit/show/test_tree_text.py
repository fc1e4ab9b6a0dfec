"""Text drawings of trees."""

from fractions import Fraction

from blinkccl.show.plan_text import share_drawing, tree_lines
from blinkccl.trees.forest.model import Share, Tree

DOWN = Tree(0, ((0, 1), (0, 9, 2), (1, 3), (2, 4)))


def _share(up, down):
    return Share(Fraction(1), 0, None, 0, up, down)


def test_children_are_in_the_order_of_their_edges():
    assert tree_lines(DOWN, upward=False) == ["0", "├─ 1", "│  └─ 3", "└─ (9) 2", "   └─ 4"]
    other = Tree(0, ((0, 9, 2), (0, 1), (2, 4), (1, 3)))
    assert tree_lines(other, upward=False) == ["0", "├─ (9) 2", "│  └─ 4", "└─ 1", "   └─ 3"]


def test_one_drawing_if_up_and_down_are_the_same_tree():
    assert share_drawing(_share(DOWN.reversed(), DOWN))[0] == "  reduce up, then broadcast down:"
    assert share_drawing(_share(DOWN.reversed(), None))[0] == "  reduce:"


def test_two_drawings_if_they_differ():
    up = Tree(0, ((1, 0), (2, 1), (3, 2), (4, 3)))
    assert share_drawing(_share(up, DOWN))[:2] == ["  reduce: 4 → 3 → 2 → 1 → 0", "  broadcast:"]


def test_a_path_names_its_inner_vertices():
    path = Tree(0, ((0, 8, 9, 5), (5, 6)))
    assert share_drawing(_share(None, path), "path") == ["  path: 0 → (8,9) 5 → 6"]


def test_a_root_alone():
    assert share_drawing(_share(None, Tree(0, ()))) == ["  broadcast: 0 alone"]


def test_a_chain_of_thousands_needs_no_recursion():
    edges = tuple((i, i + 1) for i in range(3000))
    branch = ((0, 5000),)
    assert len(tree_lines(Tree(0, edges + branch), upward=False)) == 3002
