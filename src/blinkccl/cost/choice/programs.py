"""From a forest to a program that a GPU's blocks can run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from blinkccl.codegen.channels import channel_loops, require_direct_stores
from blinkccl.codegen.layout import Geometry
from blinkccl.collectives.spec import Collective
from blinkccl.cost.baselines.nccl_links import CountedLinks, guess_arch
from blinkccl.cost.baselines.nccl_system import check_nvidia
from blinkccl.cost.choice.block_costs import BlockWork, work_of
from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.schedule.chunking import largest_share
from blinkccl.schedule.dealing import dealt
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import verify
from blinkccl.topology.memories import without_memory_links
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest

#: The collectives that NCCL has; those without a root first.
SERVED = ("allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce", "gather", "scatter")
#: Messages of a connection under way at once. NCCL has 8 of half a MiB per channel.
SLOTS = 4
#: A rank's blocks, where nobody says: a quarter of the multiprocessors, and not more than these.
MOST_BLOCKS = 32
#: Of one part's message.
MOST_SLOT_BYTES, MOST_LINE_BYTES = 128 << 10, 32 << 10
#: Of a message that copy engines carry: each costs them 10 us, so it is large.
MOST_COPY_BYTES = 8 << 20


@dataclass(frozen=True, eq=False)
class CandidateProgram:
    """A program that the verifier accepts and GPU blocks can run. Compared by identity.

    ``counted``: the links of its machine, as NCCL counts them.
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
        """Of its kernels: ``broadcast_root3_optimal``."""
        root = self.collective.root
        return f"{self.collective.name}{'' if root is None else f'_root{root}'}_{self.algorithm}"

    @property
    def channels(self) -> int:
        return len(self.program.channels)

    def parts(self, blocks: int) -> int:
        """Blocks of each channel on a rank that has so many."""
        return max(1, blocks // max(1, self.channels))

    @cached_property
    def evenly(self) -> bool:
        """Whether its code cuts all slices into as many chunks."""
        return largest_share(self.program) is not None

    @cached_property
    def work(self) -> BlockWork:
        """What its blocks do."""
        return work_of(self.program)


@dataclass(frozen=True, slots=True)
class Gpu:
    """What kernels run on: a compute capability (90 for 9.0), how many blocks a rank has, and the machine's links."""

    arch: str
    capability: int
    blocks: int
    counted: CountedLinks


#: Compute capability and multiprocessors of the GPUs that a topology tells.
_GPUS = {"pascal": (60, 56), "volta": (70, 80), "ampere": (80, 108), "hopper": (90, 132), "blackwell": (100, 148)}


def default_blocks(multiprocessors: int) -> int:
    """Of a rank that has so many multiprocessors."""
    return min(MOST_BLOCKS, max(1, multiprocessors // 4))


def gpu_of(topology: Topology) -> Gpu:
    """The GPUs of a machine, as far as its links tell."""
    arch = guess_arch(topology)
    capability, multiprocessors = _GPUS[arch]
    return Gpu(arch, capability, default_blocks(multiprocessors), CountedLinks(topology))


def largest(parts: int) -> Geometry:
    """Messages as large as they may get: what choices are made with before memory is dealt out."""
    return Geometry(parts, SLOTS, MOST_SLOT_BYTES, MOST_LINE_BYTES, SLOTS, MOST_COPY_BYTES)


def kernels_fault(request: Request) -> str | None:
    """Why no kernels of ours run this job; a sentence without full stop. None: they do."""
    name = request.collective.name
    if name not in SERVED:
        return f"kernels serve no {name}: messages go by copy engines"
    try:
        check_nvidia(request.topology, request.ranks)
    except UnsupportedError:
        return "kernels are CUDA's, and these are no NVIDIA GPUs"
    if len({request.topology.vertex[rank].server for rank in request.ranks}) > 1:
        return "no kernel of ours stores between servers"
    if any(vertex.kind == "gpu" and vertex.part_of is not None for vertex in request.topology.vertices):
        return "NCCL goes through a GPU of the job (NVB), and no kernel of ours does"
    return None


def on_stores(request: Request) -> Request:
    """The job on those links that stores between its GPUs can take, where these join them; else as it is."""
    direct = replace(request, topology=without_memory_links(request.topology))
    try:
        _ = direct.network
    except TopologyError:
        return request
    return direct


def compiled(name: str, forest: Forest, blocks: int, counted: CountedLinks) -> CandidateProgram:
    """The program of a forest on a machine's links, dealt to at most so many blocks per rank.

    UnsupportedError says why stores cannot take its paths, or code for GPUs cannot run it.
    """
    program = dealt(lower(forest, slots=SLOTS), blocks)
    require_direct_stores(program, forest.topology)
    verify(program, forest.topology)
    channel_loops(program, SLOTS)
    return CandidateProgram(name, forest, program, counted)
