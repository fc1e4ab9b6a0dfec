"""From a forest to a program that a GPU's blocks can run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from blinkccl.codegen.channels import MAX_ENDS, channel_loops, require_direct_stores
from blinkccl.codegen.layout import Geometry
from blinkccl.collectives.spec import Collective
from blinkccl.cost.baselines.nccl_links import CountedLinks
from blinkccl.cost.baselines.nccl_system import check_nvidia
from blinkccl.cost.choice.block_costs import BlockWork, work_of
from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.schedule.chunking import largest_share
from blinkccl.schedule.dealing import dealt
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import verify
from blinkccl.topology.gpus import guess_arch
from blinkccl.topology.memories import without_memory_links
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.bounds import bound_gb_per_s
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest

#: NCCL's collectives; those without a root first.
SERVED = ("allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce", "gather", "scatter")
#: Messages in flight on a connection. NCCL has 8 of half a MiB per channel.
SLOTS = 4
#: Maximum default blocks of a rank, which are a quarter of its multiprocessors.
MOST_BLOCKS = 32
#: Maximum bytes of one part's message.
MOST_SLOT_BYTES, MOST_LINE_BYTES = 128 << 10, 32 << 10
#: Maximum bytes of a message by copy engines, large because each message costs 10 us.
MOST_COPY_BYTES = 8 << 20


@dataclass(frozen=True, eq=False)
class CandidateProgram:
    """A program that the verifier accepts and GPU blocks can run. Compared by identity.

    ``counted``: the links of its machine in NCCL's constants.
    """

    algorithm: str
    forest: Forest
    program: Program
    counted: CountedLinks

    @property
    def collective(self) -> Collective:
        return self.program.collective

    @property
    def network(self) -> Topology:
        return self.forest.topology

    @property
    def name(self) -> str:
        """The name of its kernels: ``broadcast_root3_optimal``."""
        root = self.collective.root
        return f"{self.collective.name}{'' if root is None else f'_root{root}'}_{self.algorithm}"

    @property
    def channels(self) -> int:
        return len(self.program.channels)

    def parts(self, blocks: int) -> int:
        """Blocks of each channel on a rank with ``blocks`` in all."""
        return max(1, blocks // max(1, self.channels))

    @cached_property
    def evenly(self) -> bool:
        """True if its code cuts all slices into the same number of chunks."""
        return largest_share(self.program) is not None

    @cached_property
    def work(self) -> BlockWork:
        """The work of its blocks."""
        return work_of(self.program)


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPUs of kernels: compute capability (90 for 9.0), blocks of a rank, and the machine's links."""

    arch: str
    capability: int
    blocks: int
    counted: CountedLinks


#: Compute capability and multiprocessors by the architecture that a topology implies.
_GPUS = {"pascal": (60, 56), "volta": (70, 80), "ampere": (80, 108), "hopper": (90, 132), "blackwell": (100, 148)}


def default_blocks(multiprocessors: int) -> int:
    """The default blocks of a rank with ``multiprocessors``."""
    return min(MOST_BLOCKS, max(1, multiprocessors // 4))


def gpu_of(topology: Topology) -> Gpu:
    """The GPUs of a machine, inferred from its links."""
    arch = guess_arch(topology)
    capability, multiprocessors = _GPUS[arch]
    return Gpu(arch, capability, default_blocks(multiprocessors), CountedLinks(topology))


def largest(parts: int) -> Geometry:
    """The geometry with the largest messages, for choices before memory is allocated."""
    return Geometry(parts, SLOTS, MOST_SLOT_BYTES, MOST_LINE_BYTES, SLOTS, MOST_COPY_BYTES)


def kernels_fault(request: Request) -> str | None:
    """The reason that kernels cannot run this job, as a sentence without full stop; None if they can."""
    name = request.collective.name
    if name not in SERVED:
        return f"kernels do not run {name}: copy engines move messages"
    try:
        check_nvidia(request.topology, request.ranks)
    except UnsupportedError:
        return "kernels need NVIDIA GPUs"
    if len({request.topology.vertex[rank].server for rank in request.ranks}) > 1:
        return "kernels do not store between servers"
    if any(vertex.kind == "gpu" and vertex.part_of is not None for vertex in request.topology.vertices):
        return "NCCL relays through a GPU of the job (NVB), which kernels do not"
    return None


def on_stores(request: Request) -> Request:
    """The job on links that allow stores between GPUs, if these join its ranks; else the unchanged job."""
    direct = replace(request, topology=without_memory_links(request.topology))
    try:
        _ = direct.network
    except TopologyError:
        return request
    return direct


def stores_bound_gb_per_s(request: Request) -> float | None:
    """The proved bound on the links that kernels store over, where these are fewer than the job's links; else None."""
    direct = on_stores(request)
    return None if direct.network == request.network else bound_gb_per_s(direct)


def require_branches(forest: Forest) -> None:
    """Refuse trees with more branches at a rank than generated code serves, before a long lowering."""
    for number, share in enumerate(forest.shares):
        children: Counter[tuple[bool, int]] = Counter()
        for up, tree in ((True, share.reduce), (False, share.broadcast)):
            children.update((up, path[-1] if up else path[0]) for path in (tree.edges if tree is not None else ()))
        # A root sums and sends in one step; any other rank has one end at its parent beside its children.
        ends = {at: 1 + count for (_, at), count in children.items() if at != share.root}
        ends[share.root] = children[True, share.root] + children[False, share.root]
        rank = max(ends, key=lambda at: ends[at])
        if ends[rank] > MAX_ENDS:
            raise UnsupportedError(
                f"share {number}: GPU {rank} has {ends[rank]} connections in a step: generated code serves {MAX_ENDS}; "
                "--algo optimal has trees within that"
            )


def compiled(name: str, forest: Forest, blocks: int, counted: CountedLinks) -> CandidateProgram:
    """The program of a forest on a machine's links, dealt to at most ``blocks`` blocks per rank.

    UnsupportedError if stores cannot follow its paths or GPU code cannot run it.
    """
    require_branches(forest)
    program = dealt(lower(forest, slots=SLOTS), blocks)
    require_direct_stores(program, forest.topology)
    verify(program, forest.topology)
    channel_loops(program, SLOTS)
    return CandidateProgram(name, forest, program, counted)
