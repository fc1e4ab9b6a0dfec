"""Short hashes of what takes part in the equality of plans: what a program was made from."""

from __future__ import annotations

from hashlib import sha256

from blinkccl.forest.model import Forest, Tree
from blinkccl.topology.model import Topology


def digest(lines: list[str]) -> str:
    """The first 16 hexadecimal digits of SHA-256 over ``lines``: short enough to read."""
    return sha256("\n".join(lines).encode()).hexdigest()[:16]


def topology_hash(topology: Topology) -> str:
    """A hash of unit, vertices and links; names, notes and provenance are for people and take no part."""
    lines = [f"unit {topology.unit_gb_per_s!r}"]
    lines += [f"vertex {v.id} {v.kind} {v.server}" for v in sorted(topology.vertices, key=lambda v: v.id)]
    lines += [
        f"link {x.src} {x.dst} {x.capacity} {x.kind}" for x in sorted(topology.links, key=lambda x: (x.src, x.dst))
    ]
    return digest(lines)


def forest_hash(forest: Forest) -> str:
    """A hash of collective, ranks, rate and shares; algorithm and certificate move no data."""
    collective = forest.collective
    lines = [
        f"{collective.name} {collective.world_size} {collective.root} {collective.src} {collective.dst}",
        f"ranks {forest.ranks}",
        f"rate {forest.rate}",
    ]
    lines += [
        f"share {share.weight} {share.slice} {share.block} {share.root} {_tree(share.reduce)} {_tree(share.broadcast)}"
        for share in forest.shares
    ]
    return digest(lines)


def _tree(tree: Tree | None) -> str:
    return "-" if tree is None else f"{tree.root}:{tree.edges}"
