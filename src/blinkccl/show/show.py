"""Exhibits of plans and machines: pictures, words and tables, and further facts computed for them.

For a plan these are the machine, if its name is a known one; the best rings for comparison; and the transfers of a
simulated call, for the player. Unavailable parts are replaced by a sentence. Of large plans a part is drawn, and the
page says which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from blinkccl.cost.baselines.candidate import Conditions
from blinkccl.cost.baselines.nccl import RingBaseline, ring_baseline
from blinkccl.cost.choice.candidates import code_of, of_forest
from blinkccl.cost.simulate.calibration import calibration_for
from blinkccl.cost.simulate.run import Simulation
from blinkccl.cost.simulate.translate import Settings
from blinkccl.errors import BlinkError, TopologyError
from blinkccl.show import words
from blinkccl.show.beside import nccl_sentence, ring_sentence
from blinkccl.show.layout import UNFOLDED, sockets_of
from blinkccl.show.page import Exhibit, Figure, Pair, Part, PlayerStage, Prose, Table
from blinkccl.show.picture import Subject, line_numbers, machine_picture, name_of, subject_of
from blinkccl.show.plan_text import children, plan_text
from blinkccl.show.text import count, fit, gb_per_s_text, seconds_text
from blinkccl.show.topology_text import topology_text
from blinkccl.show.tree_picture import share_picture, weight_text
from blinkccl.topology.model import Topology
from blinkccl.topology.plan_links import same_links
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import machine_named
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.document import moving_shares
from blinkccl.trees.forest.model import Forest, Share, Tree, tree_depth
from blinkccl.units import size_text

#: Limits on drawn shares of a plan, and on steps of their trees on the page.
MOST_SHARES, MOST_STEPS = 64, 60_000
#: Limit on steps of all trees for a simulation, and on transfers in it, each of which adds bytes to the page.
MOST_TIMED_STEPS, MOST_TRANSFERS = 1_000, 3_000
#: Limits on rows of a table, and on ranks for a search of rings, whose cycles take seconds.
MOST_LISTED, MOST_RING_RANKS = 100, 128
#: Default size of the simulated call.
SIZE_BYTES = 64 << 20
_RATES = "Rates are nominal link rates from the vendors."


def of_topology(topology: Topology) -> Exhibit:
    """A machine with all its links."""
    picture = machine_picture(topology, title="The machine")
    kinds: dict[tuple[str, float, str], int] = {}
    for link in topology.links:
        key = (link.kind, link.gb_per_s, link.provenance)
        kinds[key] = kinds.get(key, 0) + 1
    rows = [(kind, str(number), gb_per_s_text(rate), origin) for (kind, rate, origin), number in kinds.items()]
    servers = {topology.vertex[rank].server for rank in topology.ranks}
    kind = topology.vertex[topology.ranks[0]].kind.upper()
    links = count(len(topology.links), "directed link")
    what = f"{count(len(topology.ranks), kind)} on {count(len(servers), 'server')}, with {links}."
    facts = [("Machine", what), *(("Note", note) for note in topology.notes[:5])]
    return Exhibit(
        "topology",
        topology.name,
        facts,
        [
            PlayerStage(
                Figure(
                    picture, f"{_RATES} Each direction of a link is a line of its own.", "machine", _is_large(topology)
                )
            ),
            Table("Links", ("kind", "number", "each", "origin"), rows, (0, 3)),
        ],
        lambda width: topology_text(topology, width=width),
        [f"blink plan allreduce --topo '{topology.name}' -o plan.json", "blink show plan.json -o plan.html"]
        if machine_named(topology.name)
        else [],
    )


def _is_large(topology: Topology) -> bool:
    return len({topology.vertex[rank].server for rank in topology.ranks}) > UNFOLDED


# A plan.
@dataclass(frozen=True)
class Drawn:
    """The topology that a plan is drawn on: its own links, or those of the whole known machine.

    ``request`` is the plan's job on that machine, else on the plan's links; ``sockets`` as in :func:`layout`.
    """

    topology: Topology
    request: Request
    sockets: Mapping[int, int] | None = None

    @property
    def large(self) -> bool:
        return _is_large(self.topology)


def drawn_on(forest: Forest, machine: Topology | None) -> Drawn:
    """The links to draw a plan on: the machine's, or the plan's own if the machine is unknown or has other links."""
    topology, collective, ranks = forest.topology, forest.collective, forest.ranks
    choice = None if machine is None else same_links(topology, machine, ranks, None)
    if machine is None or choice is None:
        return Drawn(topology, Request(topology, collective, ranks))
    request = Request(machine, collective, ranks, choice.links, choice.relays)
    try:
        whole = network_for(machine, machine.ranks, choice.links, relays=choice.relays)
    except TopologyError:
        whole = topology
    if not whole.link.keys() >= topology.link.keys():
        whole = topology
    return Drawn(whole, request, sockets_of(machine))


def of_plan(forest: Forest, machine: Topology | None, file: str = "plan.json", size_bytes: int = SIZE_BYTES) -> Exhibit:
    """A plan; ``machine`` is its machine (None: looked up by the topology's name), ``file`` its name in commands.

    Cost: a second for a server, ten for 1,024 GPUs.
    """
    on = drawn_on(forest, machine or machine_named(forest.topology.name))
    ring = ring_baseline(on.request) if len(forest.ranks) <= MOST_RING_RANKS else None
    timed = _timed(forest, on.request, size_bytes)
    stage, data = _stage(forest, on, timed)
    parts: list[Part] = [
        stage,
        *_against(forest, ring, on),
        Prose("Why nothing is faster" if forest.optimal else "The bound", list(words.proof(forest))),
        _link_table(forest),
        _share_table(_moving(forest)),
    ]
    facts = [
        *words.summary(forest, _ring_words(forest, ring)),
        *_nccl_words(_nccl_line(forest, on.request, size_bytes, timed)),
        ("At a size", timed if isinstance(timed, str) else _timed_words(timed, size_bytes)),
    ]
    size = size_text(size_bytes)
    following = [f"blink check {file}", f"blink sim {file} --size {size}", f"blink export {file} --to cuda"]

    def text(width: int | None) -> str:
        lines = [_nccl_line(forest, on.request, size_bytes, timed), "" if ring is None else ring_sentence(ring, forest)]
        return plan_text(forest, width=width) + "".join(fit(f"\n{line}\n", width) for line in lines if line)

    return Exhibit("plan", words.title(forest), facts, parts, text, following, data)


def shape_fault(forest: Forest) -> str | None:
    """The reason why an unchecked plan cannot be drawn, without full stop; None if it can. O(edges)."""
    strangers = forest.link_load.keys() - forest.topology.link.keys()
    if strangers:
        src, dst = min(strangers)
        return f"a tree crosses {src} → {dst}, which is not in its topology"
    for i, share in enumerate(forest.shares):
        for tree, upward in ((share.reduce, True), (share.broadcast, False)):
            if tree is not None and not _is_tree(tree, upward):
                return f"shares[{i}].{'reduce' if upward else 'broadcast'} is not one tree with root {tree.root}"
    return None


def _is_tree(tree: Tree, upward: bool) -> bool:
    below = {
        parent: [path[0] if upward else path[-1] for path in paths] for parent, paths in children(tree, upward).items()
    }
    reached, level = {tree.root}, [tree.root]
    while level:
        level = [child for node in level for child in below.get(node, ())]
        if len(reached) + len(level) > len(reached | set(level)):
            return False  # A vertex is reached twice.
        reached.update(level)
    return len(reached) == len(tree.edges) + 1


def _moving(forest: Forest) -> list[Share]:
    return [share for share in forest.shares if any(tree.edges for tree in share.trees())]


def _stage(forest: Forest, on: Drawn, timed: TimedShow | str) -> tuple[PlayerStage, dict[str, object]]:
    """The interactive part, and its data for the page's script."""
    number = line_numbers(on.topology)
    shares = _moving(forest)
    drawn = shares[: _how_many(shares)]
    data: dict[str, object] = {"shares": [_steps(share, number) for share in drawn]}
    if not isinstance(timed, str):
        data |= _player_data(timed, forest, drawn, number)
    title = "The machine, and the load of its links"
    picture = machine_picture(on.topology, subject_of(forest), title=title, sockets=on.sockets)
    caption = f"{_RATES} Each direction of a link is a line of its own; its colour is how full it is."
    more = f"{len(drawn)} of {len(shares)} shares are drawn; the file has all." if len(drawn) < len(shares) else ""
    pictures = [share_picture(forest, share, i) for i, share in enumerate(drawn)]
    return PlayerStage(Figure(picture, caption, "machine", on.large), pictures, more, "moves" in data), data


def _how_many(shares: Sequence[Share]) -> int:
    steps = 0
    for i, share in enumerate(shares[:MOST_SHARES]):
        steps += sum(len(path) - 1 for tree in share.trees() for path in tree.edges)
        if steps > MOST_STEPS:
            return max(1, i)
    return min(len(shares), MOST_SHARES)


def _steps(share: Share, number: Mapping[tuple[int, int], int]) -> dict[str, object]:
    """The links of each stage, by their numbers on the page."""

    def links(tree: Tree | None) -> list[int]:
        arcs = dict.fromkeys(arc for path in (tree.edges if tree else ()) for arc in pairwise(path))
        return [number[arc] for arc in arcs if arc in number]

    text = f"{weight_text(share.weight)} of the data, root {share.root}"
    return {"said": text, "up": links(share.reduce), "down": links(share.broadcast)}


# Time.
@dataclass(frozen=True)
class TimedShow:
    """A plan's predicted time, and the traced run for the player."""

    seconds: float
    algbw_gb_per_s: float
    how: str
    run: Simulation


def _timed(forest: Forest, request: Request, size_bytes: int) -> TimedShow | str:
    """The plan at a size, or the reason why there is no time."""
    steps = sum(len(tree.edges) for share in forest.shares for tree in share.trees())
    if steps > MOST_TIMED_STEPS:
        return f"Not simulated here, as its trees have {steps:,} steps; use blink sim."
    conditions = Conditions(calibration_for(request.topology), Settings(budget=MOST_TRANSFERS))
    try:
        code = code_of(request)
        estimate = of_forest(forest, code, conditions).at(size_bytes)
    except BlinkError as error:
        return f"Not simulated: {error}"
    if estimate.simulation is None or not estimate.simulation.seconds:
        return "Nothing moves at this size."
    by = "copy engines" if code.gpu is None else f"kernels, {estimate.detail.partition(',')[0]}"
    return TimedShow(estimate.seconds, estimate.algbw_gb_per_s, by, estimate.simulation.traced())


def _timed_words(timed: TimedShow, size_bytes: int) -> str:
    several = f"; {timed.run.aggregated} chunks are timed as one" if timed.run.aggregated > 1 else ""
    return (
        f"{size_text(size_bytes)} take {seconds_text(timed.seconds)}, {gb_per_s_text(timed.algbw_gb_per_s)}, the time "
        f"that the simulator predicts ({timed.how}{several})."
    )


def _player_data(
    timed: TimedShow, forest: Forest, drawn: Sequence[Share], number: Mapping[tuple[int, int], int]
) -> dict[str, object]:
    """The script's data: per transfer its share, begin and end (of 10,000), and links."""
    run = timed.run
    trace, translation, seconds = run.outcome.trace, run.translation, run.seconds
    assert trace is not None  # The run was traced.
    moving = [i for i, share in enumerate(forest.shares) if any(tree.edges for tree in share.trees())]
    place = {i: n for n, i in enumerate(moving[: len(drawn)])}
    moves = []
    columns = (trace.hop, trace.actor, trace.move_s, trace.end_s)
    for hop, actor, begin_s, end_s in zip(*(column.tolist() for column in columns), strict=True):
        share = place.get(translation.actors[actor][1])
        if hop < 0 or share is None:
            continue
        arcs = [number[arc] for arc in pairwise(translation.legs[hop].path) if arc in number]
        begin, end = min(9999, int(begin_s / seconds * 10000)), round(end_s / seconds * 10000)
        moves.append([share, begin, max(begin + 1, end), *arcs])
    factor, unit = (1e6, "µs") if seconds < 1e-3 else (1e3, "ms") if seconds < 1 else (1.0, "s")
    return {"moves": moves, "seconds": seconds, "scale": factor, "unit": unit, "digits": 1 if unit == "µs" else 3}


# Comparison with rings.
def _ring_words(forest: Forest, ring: RingBaseline | None) -> str:
    return _as_sentence("" if ring is None else ring_sentence(ring, forest), "paper")


def _nccl_words(line: str) -> list[tuple[str, str]]:
    sentence = _as_sentence(line, "nccl")
    return [("Today's NCCL", sentence)] if sentence else []


def _nccl_line(forest: Forest, request: Request, size_bytes: int, timed: TimedShow | str) -> str:
    """The line on today's NCCL at the size."""
    if isinstance(timed, str):
        return ""
    return nccl_sentence(forest, request, size_bytes, lambda size: timed.algbw_gb_per_s)


def _as_sentence(line: str, label: str) -> str:
    sentence = line.removeprefix(label).strip()
    return f"{sentence[:1].upper()}{sentence[1:]}." if sentence else ""


def _against(forest: Forest, ring: RingBaseline | None, on: Drawn) -> Iterator[Part]:
    if ring is None or ring.forest is None or forest.algorithm == "ring" or on.large:
        return
    within = ring.forest.topology.link.keys() <= on.topology.link.keys()
    base = on.topology if within else ring.forest.topology
    first = machine_picture(base, _bare(ring.forest), title="Rings", prefix="r", sockets=on.sockets)
    second = machine_picture(on.topology, _bare(forest), title="This plan", prefix="q", sockets=on.sockets)
    about = "The same job with rings by NCCL 2.4's rule and with this plan: the load of each link."
    yield Pair(
        "Ring and plan, link by link",
        Figure(first, _where(ring), "ring"),
        Figure(second, f"{count(moving_shares(forest), 'share')}.", "plan"),
        about,
    )


def _where(ring: RingBaseline) -> str:
    return f"{count(ring.rings, 'ring')}." if ring.fast else "No NVLink ring joins all ranks, so one goes over PCIe."


def _bare(forest: Forest) -> Subject:
    """Loads without the proof."""
    whole = subject_of(forest)
    return Subject(whole.ranks, whole.links, whole.load)


# Tables.
def _link_table(forest: Forest) -> Table:
    topology = forest.topology
    rows = sorted(forest.link_load.items(), key=lambda row: (-row[1] / topology.link[row[0]].capacity, row[0]))
    label = {vertex.id: name_of(vertex) for vertex in topology.vertices}
    cells = []
    for arc, load in rows[:MOST_LISTED]:
        link = topology.link[arc]
        used = float(load) * topology.unit_gb_per_s
        cells.append(
            (
                label[arc[0]],
                label[arc[1]],
                link.kind,
                gb_per_s_text(link.gb_per_s),
                gb_per_s_text(used),
                f"{float(load / link.capacity):.0%}",
            )
        )
    about = f"The {MOST_LISTED} fullest of {len(rows)} used links." if len(rows) > MOST_LISTED else ""
    return Table("Load of the links", ("from", "to", "kind", "rate", "used", "full"), cells, (0, 1, 2), about)


def _share_table(shares: Sequence[Share]) -> Table:
    cells = [
        (
            str(i + 1),
            str(share.weight) if len(str(share.weight)) < 16 else f"{float(share.weight):.6f}",
            f"{float(share.weight):.2%}",
            str(share.root),
            str(max(tree_depth(tree) for tree in share.trees())),
            str(sum(len(tree.edges) for tree in share.trees())),
        )
        for i, share in enumerate(shares[:MOST_LISTED])
    ]
    about = f"The first {MOST_LISTED} of {len(shares)} shares." if len(shares) > MOST_LISTED else ""
    return Table("Shares of the data", ("share", "part", "of the data", "root", "depth", "steps"), cells, (), about)
