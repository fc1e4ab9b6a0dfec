"""Expansion of a plan that states its shares by orbits: every share and every row of ``link_load``.

This is the checker's own reader of ``turns`` (docs/optimum.md, "Plans by orbits"). It trusts no symmetry: the expanded
shares are checked one by one, like those of any plan. The path of an image names the share in the plan and the number
of times that each turn was applied: ``shares[2]@[0,17]``.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from blinkccl.errors import ScheduleError
from blinkccl.proof.reading import Arc, Block, ClaimedPlan, GivenLinks, Path, PlanShare, StatedLoad

#: Limits of shares and of vertices in hops, far above any honest plan.
MAX_SHARES = 1_000_000
MAX_CROSSED = 2**26


@dataclass(frozen=True, slots=True)
class _StatedTurn:
    """A permutation of vertices. ``to`` maps each vertex to its image; ``paths`` caches turned paths."""

    to: dict[int, int]
    order: int
    paths: dict[Path, Path]

    def path(self, path: Path) -> Path:
        image = self.paths.get(path)
        if image is None:
            image = self.paths[path] = tuple([self.to.get(v, v) for v in path])
        return image


def written_out(plan: ClaimedPlan, network: GivenLinks) -> ClaimedPlan:
    """The plan with all its shares and loads. ScheduleError, with the JSON path, if a turn is invalid.

    Ranks must be vertices of ``network``. Before any expansion, a plan is refused that would have more than
    :data:`MAX_SHARES` shares, or hops with more than :data:`MAX_CROSSED` vertices.
    """
    if not plan.turns:
        return plan
    turns = [_turn(cycles, f"turns[{i}]", plan.ranks, network) for i, cycles in enumerate(plan.turns)]
    moves = 1
    for i, turn in enumerate(turns):
        moves *= turn.order
        if moves > len(plan.ranks):
            raise ScheduleError(f"turns[{i}]: expected at most {len(plan.ranks)} images of a share, got {moves}")
    crossed = sum(len(path) for share in plan.shares for path in (*(share.reduce or ()), *(share.broadcast or ())))
    if moves * len(plan.shares) > MAX_SHARES or moves * crossed > MAX_CROSSED:
        raise ScheduleError(
            f"turns: expected at most {MAX_SHARES} shares and {MAX_CROSSED} vertices in their hops, got "
            f"{moves * len(plan.shares)} and {moves * crossed}, as each share has {moves} images"
        )
    return replace(
        plan, shares=_in_order(plan, turns), link_load=tuple(_loads(plan.link_load, turns, network.capacity)), turns=()
    )


def _turn(cycles: tuple[tuple[int, ...], ...], where: str, ranks: tuple[int, ...], network: GivenLinks) -> _StatedTurn:
    to: dict[int, int] = {}
    order = max(len(cycle) for cycle in cycles)
    for i, cycle in enumerate(cycles):
        if order % len(cycle):
            raise ScheduleError(f"{where}.cycles[{i}]: expected a length that divides {order}, got {len(cycle)}")
        for at, vertex in enumerate(cycle):
            if vertex not in network.kinds:
                raise ScheduleError(f"{where}.cycles[{i}][{at}]: {vertex} is no vertex of the topology")
            if vertex in to:
                raise ScheduleError(f"{where}.cycles[{i}][{at}]: {vertex} is named twice, so this is no permutation")
            to[vertex] = cycle[(at + 1) % len(cycle)]
    job = frozenset(ranks)
    for rank in ranks:
        if to.get(rank, rank) not in job:
            raise ScheduleError(f"{where}: rank {rank} maps to {to[rank]}, which is no rank")
    return _StatedTurn(to, order, {})


def _in_order(plan: ClaimedPlan, turns: list[_StatedTurn]) -> tuple[PlanShare, ...]:
    """All images sorted by root, block, share and turns, with the first turn the fastest; ``slice`` is the index."""
    place = {rank: i for i, rank in enumerate(plan.ranks)}
    images: list[tuple[list[int], PlanShare]] = []
    for share in plan.shares:
        for vertex in _named(share):
            if vertex not in place:
                raise ScheduleError(f"{share.where}: its root and block must be ranks, but {vertex} is no rank")
        images += [([place[vertex] for vertex in _named(image)], image) for image in _images(share, turns)]
    images.sort(key=lambda entry: entry[0])
    stated = {share.where: share for share in plan.shares}
    for number, (_, image) in enumerate(images):
        if image.where in stated and image.slice != number:
            raise ScheduleError(f"{image.where}.slice: expected {number}, its place among all, got {image.slice}")
    return tuple(replace(image, slice=number) for number, (_, image) in enumerate(images))


def _named(share: PlanShare) -> tuple[int, ...]:
    """The vertices that must be ranks: root and block."""
    block = () if share.block is None else share.block if isinstance(share.block, tuple) else (share.block,)
    return (share.root, *block)


def _images(share: PlanShare, turns: list[_StatedTurn]) -> Iterator[PlanShare]:
    images: list[tuple[tuple[int, ...], PlanShare]] = [((), share)]
    for turn in turns:
        layer, images = images, []
        for k in range(turn.order):
            if k > 0:
                layer = [(times, _turned(image, turn)) for times, image in layer]
            images += [((*times, k), image) for times, image in layer]
    for times, image in images:
        yield replace(image, where=f"{share.where}@[{','.join(map(str, times))}]") if any(times) else image


def _turned(share: PlanShare, turn: _StatedTurn) -> PlanShare:
    up, down = (edges and [turn.path(path) for path in edges] for edges in (share.reduce, share.broadcast))
    root, *ends = turn.path(_named(share))
    block: Block = (ends[0], ends[1]) if len(ends) == 2 else ends[0] if ends else None
    return replace(share, root=root, block=block, reduce=up, broadcast=down)


def _loads(rows: tuple[StatedLoad, ...], turns: list[_StatedTurn], links: Container[Arc]) -> Iterator[StatedLoad]:
    """Each row for all images of its link. A missing link, or one stated before, has no further images."""
    stated: set[Arc] = set()
    for row in rows:
        line, queued = [row.arc], {row.arc}
        for arc in line:
            yield replace(row, arc=arc)
            if arc in stated or arc not in links:
                continue
            stated.add(arc)
            for turn in turns:
                image = (turn.to.get(arc[0], arc[0]), turn.to.get(arc[1], arc[1]))
                if image not in queued:
                    queued.add(image)
                    line.append(image)
