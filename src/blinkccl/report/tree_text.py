"""A share's trees as small drawings."""

from __future__ import annotations

from blinkccl.forest.model import Path, Share, Tree


def share_drawing(share: Share, down_title: str = "broadcast") -> list[str]:
    """The up-tree and the down-tree, indented; one drawing where both are the same tree."""
    up, down = share.reduce, share.broadcast
    if up is not None and down is not None and sorted(up.edges) == sorted(down.reversed().edges):
        return _titled("reduce up, then broadcast down", up, upward=True)
    lines: list[str] = []
    if up is not None:
        lines += _titled("reduce", up, upward=True)
    if down is not None:
        lines += _titled(down_title, down, upward=False)
    return lines


def _titled(title: str, tree: Tree, upward: bool) -> list[str]:
    below = children(tree, upward)
    if not tree.edges:
        return [f"  {title}: {tree.root} alone"]
    if all(len(paths) == 1 for paths in below.values()):
        return [f"  {title}: {_chain(tree, below, upward)}"]
    return [f"  {title}:", *(f"    {line}" for line in tree_lines(tree, upward))]


def children(tree: Tree, upward: bool) -> dict[int, list[Path]]:
    """Per parent its edges, in the order of reduction or sending."""
    below: dict[int, list[Path]] = {}
    for path in tree.edges:
        below.setdefault(path[-1] if upward else path[0], []).append(path)
    return below


def _chain(tree: Tree, below: dict[int, list[Path]], upward: bool) -> str:
    """A tree without branches, in the direction of the data."""
    hops = []
    vertex = tree.root
    while vertex in below:
        path = below[vertex][0]
        hops.append(path)
        vertex = path[0] if upward else path[-1]
    if upward:
        hops.reverse()
    return str(hops[0][0]) + "".join(f" →{_via(path)} {path[-1]}" for path in hops)


def tree_lines(tree: Tree, upward: bool) -> list[str]:
    """A tree as lines, root first, children in order. Depth first without recursion: chains can be long."""
    below = children(tree, upward)
    lines = [str(tree.root)]
    stack = [(path, "", i == 0) for i, path in enumerate(below.get(tree.root, [])[::-1])]
    while stack:
        path, indent, last = stack.pop()
        child = path[0] if upward else path[-1]
        lines.append(f"{indent}{'└─' if last else '├─'}{_via(path)} {child}")
        deeper = indent + ("   " if last else "│  ")
        stack += [(edge, deeper, i == 0) for i, edge in enumerate(below.get(child, [])[::-1])]
    return lines


def _via(path: Path) -> str:
    """What a hop crosses: `` (8,9)`` for switches 8 and 9."""
    return f" ({','.join(map(str, path[1:-1]))})" if len(path) > 2 else ""
