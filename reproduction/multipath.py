"""The multi-path UCX article: copies over two paths, and AllReduce on Mist and Cedar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

from blinkccl.cost.baselines.by_size import path_rate, timed_split
from blinkccl.cost.baselines.candidate import ChunkedPlan, Prepared, planned
from blinkccl.cost.baselines.nccl import prepare_nccl_24
from blinkccl.cost.baselines.staged import prepare_host_staged
from blinkccl.show.models import gradient_bytes, network
from blinkccl.trees.algorithms import optimal
from blinkccl.trees.algorithms.multi_path import inside_sockets, portions, ways
from blinkccl.trees.algorithms.path_table import Part, Split
from blinkccl.trees.forest.model import Forest
from reproduction.claim import Context, Page, Value
from reproduction.jobs import MIB, conditions, request

PAGE = Page("C")

#: Two GPUs of one socket.
PAIR = (0, 1)
#: Chunks of the part through the host, each on a stream of its own.
STREAMS = 8
#: A size in the flat part of the article's curves.
LARGE_BYTES = 512 * MIB
#: Relative error of a peak that was read off a curve and then rounded.
READ_OFF = 0.1
#: GB/s per direction that the article counts as theoretical: three and two NVLinks, and to the host NVLink or PCIe.
MIST_THEORY, CEDAR_THEORY = 75 + 75, 50 + 16
MIST_HOST_PARTS = (Fraction(25, 100), Fraction(30, 100))
#: Printed peaks of copies over two paths in GB/s, and their ratios to the direct copy.
_PUT = {"mist": (120.0, 1.67, MIST_THEORY), "cedar": (54.0, 1.18, CEDAR_THEORY)}
_WINDOW = {"mist": (134.0, 1.84, MIST_THEORY), "cedar": (60.0, 1.23, CEDAR_THEORY)}

#: Printed ratio of a library's time to that of the article's design, by size.
Ratios = Mapping[str, Mapping[int, float]]
_MIST: Ratios = {
    "Open MPI + UCX": {64 * MIB: 14.33, 1024 * MIB: 15.63},
    "Spectrum MPI": {64 * MIB: 11.47, 1024 * MIB: 12.25},
    "NCCL": {64 * MIB: 1.25, 1024 * MIB: 1.38},
    "MVAPICH2-GDR": {64 * MIB: 1.26, 1024 * MIB: 1.47},
    "HPC-X": {64 * MIB: 1.09},
}
#: The networks of Fig 9.
TRAINED = ("resnet50", "resnet152", "densenet201", "vgg16")
#: Printed throughput ratios of Fig 9: Cedar's, over Open MPI, MVAPICH2, NCCL, hierarchical.
CEDAR_TRAINING = {
    "ResNet50": (2.00, 3.14, 1.02, 1.03),
    "DenseNet201": (1.33, 2.23, 0.97, 1.04),
    "VGG16": (5.96, 7.51, 1.02, 1.35),
}


def two_paths(machine: str) -> Forest:
    """A message between two GPUs of a socket, directly and through their host."""
    return optimal.plan(replace(request(machine, "sendrecv", PAIR), links="all"))


def even_part(context: Context, machine: str, chunks: int) -> Fraction:
    """Part of a message through the host, in this number of chunks, at which both paths take equally long."""
    flow, costs = two_paths(machine), context.calibration(machine)
    one, other = (path_rate(flow, costs, way, portions(flow)) for way in ways(flow))
    # The last chunk goes up alone, so the host's part takes one chunk longer than its rate implies.
    return Fraction(1 / (1 + (1 + 1 / chunks) * one / other)).limit_denominator(1000)


def copy_of(
    context: Context, machine: str, host_part: Fraction | None, streams: int = STREAMS, window: int = 1
) -> ChunkedPlan:
    """The article's copy between two GPUs of a socket, on the machine's calibration, without paths through other GPUs.

    A part ``host_part``, 0 ≤ part < 1 (None: the part at which both paths take equally long), goes through the host in
    as many chunks as there are ``streams``: one goes up while the next comes down. ``window`` messages are in flight.
    """
    job, flow = conditions(context, machine), two_paths(machine)
    around, through = ways(flow)
    part = even_part(context, machine, streams * window) if host_part is None else host_part
    # A window's direct copies are issued while others run; a single one starts by itself.
    parts = [Part(around.path, 1 - part, streams if window > 1 else 1), Part(through.path, part, streams)]
    return timed_split(flow, job, Split(parts=tuple(row for row in parts if row.weight)), window)


def copy_gb_per_s(context: Context, machine: str, host_part: Fraction | None, window: int = 1) -> float:
    """Bandwidth of the copy for a large message."""
    return copy_of(context, machine, host_part, window=window).at(LARGE_BYTES).algbw_gb_per_s


def _basis(machine: str, what: str) -> str:
    return f"{what}, {STREAMS} streams, on {machine}; that calibration's rates are fitted to Figs 3 and 4"


@PAGE.claim("U1", "Performance Evaluation, Fig 3")
def _put_bandwidth(context: Context) -> tuple[Value, ...]:
    """UCX Put over two paths: 120 GB/s on Mist (1.67 times), 45 to 54 GB/s on Cedar (1.18 times); 80 and 82 % of
    theory.

    The direct rates, and on Cedar the host's, are fitted to this figure and confirm nothing. Mist's 120 is a
    prediction: its links to the host are assumed to be as fast as those between GPUs, and its host's memory is fitted
    to Fig 4.
    """
    printed = "the article's own numbers"
    values = []
    for (machine, (peak, times, theory)), direct, part in zip(_PUT.items(), (120 / 1.67, 45.0), (80, 82), strict=True):
        one = copy_gb_per_s(context, machine, Fraction(0))
        both = copy_gb_per_s(context, machine, None)
        values += [
            Value(f"{machine}, direct", direct, one, "GB/s", READ_OFF, basis=_basis(machine, "direct copy")),
            Value(f"{machine}, two paths", peak, both, "GB/s", READ_OFF, basis=_basis(machine, "multi-path")),
            Value(f"{machine}, speedup", times, both / one, "times", READ_OFF, basis=_basis(machine, "multi-path")),
            Value(f"{machine}, part of theory", part, 100 * peak / theory, "%", 0.01, basis=printed),
        ]
    return (*values, Value("cedar, 54 over 45", 1.18, 54 / 45, "times", 0.02, basis=printed))


@PAGE.claim("U2", "Performance Evaluation, Fig 4")
def _window_bandwidth(context: Context) -> tuple[Value, ...]:
    """MPI bandwidth with 64 messages under way: 134 GB/s on Mist (1.84 times), 60 GB/s on Cedar (1.23 times).

    Mist's host memory is fitted to its 134 GB/s. Cedar's 60 GB/s needs 11 GB/s through the host, but the PCIe of Fig
    3's calibration has 8.2.
    """
    values = []
    for machine, (peak, times, _) in _WINDOW.items():
        one, both = (copy_gb_per_s(context, machine, part, window=64) for part in (Fraction(0), None))
        basis = _basis(machine, "multi-path, window 64")
        values += [
            Value(f"{machine}, direct", peak / times, one, "GB/s", READ_OFF, basis=basis),
            Value(f"{machine}, two paths", peak, both, "GB/s", READ_OFF, basis=basis),
            Value(f"{machine}, speedup", times, both / one, "times", READ_OFF, basis=basis),
        ]
    return tuple(values)


@PAGE.claim("U3", "The Multi-Path Communication", wrong=True)
def _host_parts(context: Context) -> tuple[Value, ...]:
    """25 to 30 % of a message go through the host on Mist, slightly less on Cedar.

    The rest goes over 75 GB/s, which limits the whole to 100 to 107 GB/s; 120 and 134 need 40 and 46 % through the
    host. On Cedar 15 to 19 % do.
    """
    values = []
    for part in MIST_HOST_PARTS:
        cap = copy_of(context, "mist", part).forest.algbw_gb_per_s
        basis = f"rate of multi-path with {float(part):.0%} through the host, mist's nominal links".replace("%", " %")
        values.append(Value(f"mist, the most with {int(100 * part)} % that way", 120, cap, "GB/s", 0.05, ">=", basis))
    most = 100 * float(MIST_HOST_PARTS[-1])
    for machine, times in ((name, table[name][1]) for name in _PUT for table in (_PUT, _WINDOW)):
        least = 100 * (1 - 1 / times)
        basis = "1 - 1/speedup, the direct path being full"
        values.append(Value(f"{machine}, least part for {times} times", most, least, "%", 0, "<=", basis))
    return tuple(values)


@PAGE.claim("U4", "The Multi-Path Communication")
def _streams(context: Context) -> tuple[Value, ...]:
    """The part through the host is cut into chunks on up to 8 streams, so that copies down and up overlap.

    The tables of chunks and splits by message size are not printed.
    """
    values = []
    for machine in ("mist", "cedar"):
        many, one = (
            copy_of(context, machine, None, streams).at(LARGE_BYTES).algbw_gb_per_s for streams in (STREAMS, 1)
        )
        basis = f"multi-path with the best split on {machine}, a chunk per stream; the host passes on whole chunks"
        values.append(Value(f"{machine}, 8 streams over one", 1, many / one, "times", relation=">=", basis=basis))
    return tuple(values)


Time = Callable[[int], float]
#: Chunks of a stage of the article's AllReduces, which it does not print: fitted to Mist's 1.25 times NCCL at 64 MB.
CHUNKS = 3


def _of_design(context: Context, how: str, spec: str, machine: str, chunks: int = CHUNKS) -> Time:
    """Seconds of the article's AllReduce by size: its stages, in chunks, and multi-path copies inside sockets.

    The next chunk is sent before the received one is reduced: the simulator's roles are as busy as their links.
    """
    forest = inside_sockets(request(spec, "allreduce"), how, even_part(context, machine, STREAMS))
    job = conditions(context, machine)
    side = ChunkedPlan(how, forest, planned(how, forest, job).program, job, "", chunks)
    return lambda size_bytes: side.at(size_bytes).seconds


def _of_baseline(context: Context, prepare: Callable[..., Prepared], spec: str, costs: str) -> Time:
    side = prepare(request(spec, "allreduce"), conditions(context, costs))
    return lambda size_bytes: side.at(size_bytes).seconds


@PAGE.claim("U5", "Intra-Node MPI Allreduce, Fig 5")
def _hierarchical(context: Context) -> tuple[Value, ...]:
    """Hierarchical AllReduce on Mist over Spectrum MPI, Open MPI + UCX, HPC-X, MVAPICH2-GDR and NCCL: 11.47, 14.33,
    1.09, 1.26 and 1.25 times at 64 MB; 12.25, 15.63, -, 1.47 and 1.38 times at 1 GB.

    The design is timed in chunks of a third of the data, fitted to 1.25 times NCCL at 64 MB; the article prints neither
    them nor their growth with the size. The rates at which the two MPIs copy and add on a POWER9 are not published. The
    assumed rates are those of x86 servers (8 GB/s for the sum), and one model stands for both, so its result is an
    order of magnitude. HPC-X and MVAPICH2-GDR reduce on the GPUs in ways that the article does not describe. NCCL's
    rings send 1.5 S over the bus between the sockets, the leaders S: with small chunks the design would be 1.5 times as
    fast.
    """
    values = []
    for name, size_bytes, spectrum, openmpi, nccl in (
        ("64 MB", 64 * MIB, 11.47, 14.33, 1.25),
        ("1 GB", 1024 * MIB, 12.25, 15.63, 1.38),
    ):
        design_s = _of_design(context, "three_stage", "mist", "mist")(size_bytes)
        staged = _of_baseline(context, prepare_host_staged, "mist", "mist")(size_bytes) / design_s
        design = f"three_stage on mist in {CHUNKS} chunks, multi-path copies inside sockets"
        basis = f"{design}; mpi-host-staged with assumed rates of the processor"
        rings = _of_baseline(context, prepare_nccl_24, "mist", "mist")(size_bytes) / design_s
        values += [
            Value(f"{name}, over Spectrum MPI", spectrum, staged, "times", READ_OFF, basis=basis),
            Value(f"{name}, over Open MPI + UCX", openmpi, staged, "times", READ_OFF, basis=basis),
            Value(f"{name}, over NCCL", nccl, rings, "times", READ_OFF, basis=f"{design}; nccl-2.4 on mist"),
        ]
    return tuple(values)


@PAGE.claim("U6", "Intra-Node MPI Allreduce, Fig 6")
def _flat(context: Context) -> tuple[Value, ...]:
    """Flat AllReduce on Cedar at 64 MB over Open MPI + UCX, MVAPICH2, hierarchical and NCCL: 104.1, 110.9, 2.77 and
    1.06 times.

    The same method and chunks as for U5; nothing here is fitted to this figure. 104 times means 0.9 GB/s for the whole
    AllReduce through the host, half of the assumed rates; they omit the cost of fresh pages in each call. Copies over
    two paths inside sockets do not speed up flat, because the links between sockets are equally full.
    """
    size_bytes = 64 * MIB
    design_s, leaders = (_of_design(context, how, "cedar", "cedar")(size_bytes) for how in ("flat", "three_stage"))
    staged = _of_baseline(context, prepare_host_staged, "cedar", "cedar")(size_bytes) / design_s
    design = f"on cedar in {CHUNKS} chunks, multi-path copies inside sockets"
    basis = f"flat {design}; mpi-host-staged with assumed rates of the processor"
    rings = _of_baseline(context, prepare_nccl_24, "cedar", "cedar")(size_bytes) / design_s
    return (
        Value("over Open MPI + UCX", 104.1, staged, "times", READ_OFF, basis=basis),
        Value("over MVAPICH2", 110.9, staged, "times", READ_OFF, basis=basis),
        Value("over hierarchical", 2.77, leaders / design_s, "times", READ_OFF, basis=f"flat and three_stage {design}"),
        Value("over NCCL", 1.06, rings, "times", READ_OFF, basis=f"flat {design}; nccl-2.4"),
    )


def cluster(nodes: int) -> str:
    """Mist with one EDR InfiniBand card per node."""
    return f"{nodes}x mist @ 100Gbps"


@PAGE.claim("U7", "Multi-Node MPI Allreduce, Figs 7, 8")
def _multi_node(context: Context) -> tuple[Value, ...]:
    """On two and four nodes NCCL is faster than all MPIs, also than this design; that is 1.18 times MVAPICH2-GDR at 64
    MB on two nodes, and level with it on four.

    Only the first half is computed. The design's stages run one after another, because the article has neither
    pipelining between nodes nor a network's features in it; NCCL's plans are pipelines. The article does not describe
    MVAPICH2-GDR there, so the second half cannot be checked.
    """
    values = []
    for nodes in (2, 4):
        rings = _of_baseline(context, prepare_nccl_24, cluster(nodes), "mist")(64 * MIB)
        times = rings / _of_design(context, "three_stage", cluster(nodes), "mist", 1)(64 * MIB)
        basis = f"three_stage in one chunk, multi-path copies inside sockets; nccl-2.4; both on {cluster(nodes)}"
        values.append(Value(f"{nodes} nodes, over NCCL", 1, times, "times", relation="<=", basis=basis))
    return tuple(values)


@PAGE.claim("U8", "Abstract; Horovod with TensorFlow, Fig 9; Conclusion", wrong=True)
def _training(context: Context) -> tuple[Value, ...]:
    """Training with Horovod is 1.07 to 3.42 times as fast on Mist and 0.97 to 7.51 times on Cedar; in the abstract 5.74
    times for DenseNet201 on Cedar, in the conclusion up to 5.75 times.

    The text of the results has at most 2.23 for DenseNet201 on Cedar, and 7.51 for VGG16. On Mist it has VGG16 train
    3.21 times as fast as with NCCL, but its AllReduces are at most 1.38 times as fast, and a step is not all AllReduce,
    so another difference must exist. Training times cannot be checked, because the models' compute times are not
    published.
    """
    basis = "the largest number that the article's text prints there"
    everything, alone = max(max(row) for row in CEDAR_TRAINING.values()), max(_MIST["NCCL"].values())
    return (
        Value("Cedar, DenseNet201, most", 5.74, max(CEDAR_TRAINING["DenseNet201"]), "times", basis=basis),
        Value("most of all", 5.75, everything, "times", basis=basis),
        Value("Mist, VGG16 over NCCL", 3.21, alone, "times", relation=">=", basis=f"{basis} of AllReduce"),
    )


@PAGE.claim("U9", "Fig 1; CosmoFlow, Fig 12")
def _profiles(_: Context) -> tuple[Value, ...]:
    """17 to 83 % of training time in AllReduce, up to 80 % with GPU buffers; CosmoFlow within 7.2 %.

    Profiles of those jobs are not published.
    """
    return ()


@PAGE.claim("U10", "Intra-Node Horovod, Fig 10; CosmoFlow Application")
def _messages(context: Context) -> tuple[Value, ...]:
    """With a fusion buffer of 1 GB VGG16 sends the largest messages; for CosmoFlow the buffer has little effect.

    The text gives no sizes. These are the sizes of the networks' parameters, 4 bytes each. All of them fit into such a
    buffer, so a message holds at most the gradients computed so far. CosmoFlow's fit into Horovod's default of 64 MiB
    too; its version is that of the benchmark with its defaults, because the article does not name one. AllReduces of
    all gradients at once on Mist are those of U5.
    """
    total = {name: gradient_bytes(network(name)) for name in (*TRAINED, "cosmoflow")}
    large, *others = sorted(map(total.__getitem__, TRAINED), reverse=True)
    shapes = "parameter shapes of torchvision's networks and of cosmoflow-benchmark"
    values = [
        Value("VGG16 over the next", 1, total["vgg16"] / max(others), "times", relation=">=", basis=shapes),
        Value("the largest in 1 GB", 1, large / 1e9, "times", relation="<=", basis=shapes),
        Value("CosmoFlow in 64 MiB", 1, total["cosmoflow"] / (64 * MIB), "times", relation="<=", basis=shapes),
    ]
    own = _of_design(context, "three_stage", "mist", "mist")
    rings = _of_baseline(context, prepare_nccl_24, "mist", "mist")
    for name, size_bytes in total.items():
        values += [
            Value(f"{name}, all gradients", None, size_bytes / 1e6, "MB", basis=shapes),
            Value(f"{name}, AllReduce over NCCL", None, rings(size_bytes) / own(size_bytes), "times", basis="as U5"),
        ]
    return tuple(values)
