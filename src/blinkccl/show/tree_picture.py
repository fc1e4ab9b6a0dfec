"""The trees of a share as a picture: the root on top, arrows for the directions of data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import hypot

from blinkccl.show.layout import Point
from blinkccl.show.plan_text import children
from blinkccl.show.shapes import Line, Picture, Rect, Shape, ShapeGroup, Text, moved
from blinkccl.show.text import ids
from blinkccl.trees.forest.model import Forest, Share, Tree

#: Limit on nodes of a drawn tree; larger ones are listed by levels, at most this many.
MOST_NODES, _LEVELS = 80, 10
#: Limit on edges of a tree with a node for every rank, and on leaves of one parent.
_WHOLE, _SIDE_BY_SIDE = 24, 6
#: Size of a node, distance between nodes, and offset of the second outline of a node for several ranks.
_DISC_W, _DISC_H, _STEP_X, _STEP_Y, _PILE = 34.0, 22.0, 44.0, 50.0, 3.0


def share_picture(forest: Forest, share: Share, number: int) -> Picture:
    """The trees of a share, root on top: one drawing if data go up and down the same tree, else two.

    In a large tree, connected ranks of one server are one node.
    """
    up, down = share.reduce, share.broadcast
    title = f"share {number + 1}: {weight_text(share.weight)} of the data"
    if up is not None and down is not None and sorted(up.edges) == sorted(down.reversed().edges):
        drawn = [_tree_shapes(forest, up, True, ("head-up", "head-down"))]
    else:
        drawn = []
        if up is not None:
            drawn.append(_tree_shapes(forest, up, True, ("head-up", "")))
        if down is not None:
            drawn.append(_tree_shapes(forest, down, False, ("", "head-down")))
    shapes: list[Shape] = []
    left, height = 0.0, 0.0
    for items, width, tall in drawn:
        shapes += [moved(item, left, 0.0) for item in items]
        left += width + 16
        height = max(height, tall)
    return Picture(shapes, max(left - 16, 60.0), height, title, _share_about(forest, share))


def weight_text(weight: Fraction) -> str:
    """``1/2``; long fractions as a percentage."""
    if weight == 1:
        return "all"
    text = str(weight)
    return text if len(text) <= 7 else f"{float(weight):.2%}"


def _share_about(forest: Forest, share: Share) -> str:
    parts = []
    if share.reduce is not None and share.reduce.edges:
        parts.append(f"up to {share.root}, adding: {_hops(share.reduce)}")
    if share.broadcast is not None and share.broadcast.edges:
        parts.append(f"down from {share.root}: {_hops(share.broadcast)}")
    return "; ".join(parts) or f"stays at {share.root}"


def _hops(tree: Tree) -> str:
    shown = ", ".join(f"{path[0]} to {path[-1]}" for path in tree.edges[:24])
    return shown + (f" and {len(tree.edges) - 24} more" if len(tree.edges) > 24 else "")


def _tree_shapes(forest: Forest, tree: Tree, upward: bool, heads: tuple[str, str]) -> tuple[list[Shape], float, float]:
    """Shapes of one tree with their width and height; ``heads`` are the arrows' styles, up and down."""
    below, labels, merged = _contracted(forest, tree, upward)
    if len(labels) > MOST_NODES:
        return _level_shapes(tree, upward)
    x, depth = _tidy(tree.root, below)
    wide = max(max((Text(0, 0, label, "strong").width for label in labels.values()), default=0) + 14, _DISC_W)
    step = max(_STEP_X, wide + 8)
    at = {node: (x[node] * step + wide / 2 + 1, depth[node] * _STEP_Y + _DISC_H / 2 + 1) for node in x}
    shapes: list[Shape] = []
    for parent, nodes in below.items():
        for child in nodes:
            ends = " ".join(map(str, (parent, *merged.get(child, (child,)))))
            shapes.append(ShapeGroup(_arrows(at[parent], at[child], heads), "", "arc", "", {"data-ends": ends}))
    for node, (cx, cy) in at.items():
        width = 2.0 if node == tree.root else 1.0
        if node in merged:
            shapes.append(Rect(cx - wide / 2 + _PILE, cy - _DISC_H / 2 + _PILE, wide, _DISC_H, "gpu", 11.0, width))
        shapes.append(Rect(cx - wide / 2, cy - _DISC_H / 2, wide, _DISC_H, "gpu", 11.0, width))
        shapes.append(Text(cx, cy + 4, labels[node], "text strong" if node == tree.root else "text", 12.0))
    return shapes, max(x.values()) * step + wide + _PILE + 2, max(depth.values()) * _STEP_Y + _DISC_H + _PILE + 2


def _level_shapes(tree: Tree, upward: bool) -> tuple[list[Shape], float, float]:
    """A list for a tree that is too large to draw: the number of ranks at each distance from the root."""
    below = {
        parent: [path[0] if upward else path[-1] for path in paths] for parent, paths in children(tree, upward).items()
    }
    level, sizes = [tree.root], []
    while level:
        sizes.append(len(level))
        level = [child for node in level for child in below.get(node, ())]
    shapes: list[Shape] = [Text(0, 12, "ranks by their hops from the root", "soft", 11.0, "start")]
    for depth, size in enumerate(sizes[:_LEVELS]):
        y, width = 20.0 + 17 * depth, 110.0 * size / max(sizes)
        shapes.append(Text(14, y + 11, str(depth), "soft", 11.0, "end"))
        shapes.append(Rect(20, y, max(width, 1.5), 13, "gpu", 3.0))
        shapes.append(Text(25 + width, y + 11, str(size), "text", 11.0, "start"))
    if len(sizes) > _LEVELS:
        shapes.append(Text(20, 32.0 + 17 * _LEVELS, f"and so on to {len(sizes) - 1}", "soft", 11.0, "start"))
    return shapes, 190.0, 42.0 + 17 * min(len(sizes), _LEVELS)


def _arrows(parent: Point, child: Point, heads: tuple[str, str]) -> list[Shape]:
    """Arrows between two nodes: up, down, or both side by side."""
    both = all(heads)
    arrows: list[Shape] = []
    for head, begin, end in ((heads[0], child, parent), (heads[1], parent, child)):
        if not head:
            continue
        length = hypot(end[0] - begin[0], end[1] - begin[1]) or 1.0
        ux, uy = (end[0] - begin[0]) / length, (end[1] - begin[1]) / length
        cut, off = 13.0 / max(abs(uy), 0.3), 2.6 if both else 0.0
        a = (begin[0] + ux * cut - uy * off, begin[1] + uy * cut + ux * off)
        b = (end[0] - ux * cut - uy * off, end[1] - uy * cut + ux * off)
        arrows.append(Line((a, b), head.removeprefix("head-"), 1.6, head=head))
    return arrows


def _contracted(
    forest: Forest, tree: Tree, upward: bool
) -> tuple[dict[int, list[int]], dict[int, str], dict[int, tuple[int, ...]]]:
    """Children per node, labels, and nodes that represent several leaves.

    In a large tree over servers, connected ranks of one server are one node.
    """
    edges = {
        parent: [path[0] if upward else path[-1] for path in paths] for parent, paths in children(tree, upward).items()
    }
    server = {vertex.id: vertex.server for vertex in forest.topology.vertices}
    head, members = {tree.root: tree.root}, {tree.root: [tree.root]}
    below: dict[int, list[int]] = {}
    stack = [tree.root]
    while stack:
        parent = stack.pop()
        for child in edges.get(parent, ()):
            if len(tree.edges) > _WHOLE and server[child] == server[parent]:
                head[child] = head[parent]
                members[head[child]].append(child)
            else:
                head[child], members[child] = child, [child]
                below.setdefault(head[parent], []).append(child)
            stack.append(child)
    merged: dict[int, tuple[int, ...]] = {}
    for parent, some in below.items():
        leaves = [child for child in some if child not in below]
        if len(leaves) > _SIDE_BY_SIDE:
            below[parent] = [child for child in some if child in below or child == leaves[0]]
            merged[leaves[0]] = tuple(leaves)
            members[leaves[0]] = [v for leaf in leaves for v in members.pop(leaf)]
    labels = {node: _shortened(ids(sorted(some))) for node, some in members.items()}
    return below, labels, merged


def _shortened(label: str) -> str:
    return label if len(label) <= 12 else f"{label[:10]}…"


def _tidy(root: int, below: Mapping[int, Sequence[int]]) -> tuple[dict[int, float], dict[int, int]]:
    """Leaves side by side, parents above the middle of their children; without recursion, as chains can be long."""
    depth, order = {root: 0}, [root]
    for node in order:
        for child in below.get(node, ()):
            depth[child] = depth[node] + 1
            order.append(child)
    leaf: dict[int, float] = {}
    stack, free = [root], 0.0
    while stack:
        node = stack.pop()
        some = below.get(node, ())
        if not some:
            leaf[node], free = free, free + 1.0
        stack += reversed(some)
    x: dict[int, float] = {}
    for node in reversed(order):
        some = below.get(node, ())
        x[node] = (x[some[0]] + x[some[-1]]) / 2 if some else leaf[node]
    return x, depth
