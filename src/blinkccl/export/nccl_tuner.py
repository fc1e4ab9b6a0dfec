"""A plan of rings as a tuner plug-in for NCCL, in C: at each size NCCL takes what is fastest on these rings.

NCCL loads it with NCCL_TUNER_PLUGIN and asks it for every collective (plug-ins v2 to v6: NCCL 2.19 to 2.30). It goes
with the rings that ``nccl-graph`` writes. Of those, and of NVLink SHARP where there is one, the table has the fastest
algorithm and protocol by NCCL 2.30's cost model, per collective and power of two; NVLS by what public logs have of it
(:data:`~blinkccl.baselines.nccl_server.NVLS_RATE`), and not by NCCL's constants.

The plug-in keeps to what it is for: communicators of so many ranks on one node. It names nothing that NCCL has ruled
out: from v3 on the cost table says what that is. v2 has no such table, so there LL128 is never named, which gives wrong
sums where NVLink does not keep stores whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import Template

from blinkccl.baselines.nccl_best_rings import best_rings
from blinkccl.baselines.nccl_model import SERVED, cost_lines
from blinkccl.baselines.nccl_search import Channels
from blinkccl.baselines.nccl_server import NcclServer
from blinkccl.errors import UnsupportedError
from blinkccl.export.nccl_graph import COMPARED_BYTES, channels_of, rings_of
from blinkccl.export.registry import File
from blinkccl.forest.model import Forest
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology

#: NCCL's numbers (src/include/nccl_common.h and plugin/nccl_tuner.h): functions, algorithms, protocols.
FUNCTIONS = {"broadcast": 0, "reduce": 1, "allgather": 2, "reduce_scatter": 3, "allreduce": 4}
ALGORITHMS = {"ring": 1, "NVLS": 4}
PROTOCOLS = {"LL": 0, "LL128": 1, "Simple": 2}
#: log2 of the sizes that are looked at.
FIRST, LAST = 6, 34
NAME = "nccl-tuner.c"


@dataclass(frozen=True, slots=True)
class TunerRow:
    """From ``least`` bytes on, up to the next row of the collective."""

    collective: str
    least: int
    algorithm: str
    protocol: str


def write(_program: Program, forest: Forest, machine: Topology | None = None) -> tuple[File, ...]:
    """One file of C; see :class:`blinkccl.export.registry.Write`. Refuses what ``nccl-graph`` refuses."""
    nccl = NcclServer.of(machine or forest.topology, forest.ranks)
    if nccl.channels.servers > 1:
        raise UnsupportedError(f"a graph file is one server's, and these GPUs are of {nccl.channels.servers}")
    after = channels_of(rings_of(forest), nccl.server, nccl.channels)
    name = forest.collective.name
    return (_file(nccl, after, name if name in SERVED else "allreduce"),)


def pack(machine: Topology, ranks: tuple[int, ...]) -> tuple[File, ...]:
    """For the rings of :func:`blinkccl.export.nccl_graph.pack`."""
    nccl = NcclServer.of(machine, ranks)
    return (_file(nccl, best_rings(nccl), "allreduce"),)


def _file(nccl: NcclServer, after: Channels, compared: str) -> File:
    lines = (
        f"  {{{FUNCTIONS[row.collective]}, {row.least}u, {ALGORITHMS[row.algorithm]}, {PROTOCOLS[row.protocol]}}},"
        f"  /* {row.collective}: {row.algorithm} {row.protocol} */"
        for name in SERVED
        for row in rows_of(nccl, after, name)
    )
    remarks = "\n".join(f" * {line}".rstrip() for line in _remarks(nccl, after, compared))
    return File(NAME, _PLUGIN.substitute(remarks=remarks, ranks=len(nccl.ranks), rows="\n".join(lines)))


def rows_of(nccl: NcclServer, after: Channels, collective: str) -> Iterator[TunerRow]:
    """Who is the fastest from which power of two on."""
    last = None
    for power in range(FIRST, LAST + 1):
        algorithm, protocol, _ = fastest(nccl, after, collective, 1 << power)
        if (algorithm, protocol) != last:
            yield TunerRow(collective, 0 if last is None else 1 << power, algorithm, protocol)
        last = algorithm, protocol


def fastest(nccl: NcclServer, after: Channels, collective: str, size_bytes: int) -> tuple[str, str, float]:
    """Algorithm, protocol and seconds of the fastest on these rings, or in the switch."""
    switch = nccl.in_switch(collective)
    lines = [line for line in cost_lines(after, collective) if line.algorithm == "ring"]
    best = min([*lines, *([] if switch is None else [switch])], key=lambda line: line.time_us(size_bytes))
    return best.algorithm, best.protocol, float(best.time_us(size_bytes)) * 1e-6


def _remarks(nccl: NcclServer, after: Channels, told: str) -> Sequence[str]:
    """What people are told."""
    gpus, name = ",".join(map(str, nccl.ranks)), nccl.topology.name
    compared = []
    for size in COMPARED_BYTES:
        algorithm, protocol, seconds = fastest(nccl, after, told, size)
        own = nccl.at(told, size)
        compared.append(
            f"{told} of {size >> 20} MiB: {algorithm} {protocol} {seconds * 1e6:.1f} us; NCCL by itself {own.words} "
            f"{own.seconds * 1e6:.1f} us (NCCL 2.30's cost model)"
        )
    return (
        f"Which algorithm and protocol NCCL takes at which size, for rings of {name}, GPUs {gpus}.",
        "",
        f"  cc -O2 -shared -fPIC {NAME} -o libnccl-tuner-blink.so",
        "  export NCCL_TUNER_PLUGIN=$PWD/libnccl-tuner-blink.so",
        "  export NCCL_GRAPH_FILE=$PWD/nccl-graph.xml       the same rings, by blink export --to nccl-graph",
        "",
        "To see that NCCL took it: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING",
        f"It leaves alone communicators that are not of {len(nccl.ranks)} ranks on one node.",
        *compared,
    )


_PLUGIN = Template(r"""/*
$remarks
 */
#include <stddef.h>
#include <stdint.h>

enum { RANKS = $ranks, UNDEFINED = -1, LL128 = 1, INFO = 3, TUNING = 0x40 };

/* By function, then by size: from so many bytes on. */
static const struct {
  int function;
  uint64_t least;
  int algorithm, protocol;
} rows[] = {
$rows
};

typedef void (*logger)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

/* A communicator that the table is for has this as its context, any other one has none. */
static char served;

static int start(size_t ranks, size_t nodes, logger log, void** context) {
  const int ours = ranks == RANKS && nodes == 1;
  *context = ours ? &served : NULL;
  if (log != NULL) {
    log(INFO, TUNING, __FILE__, __LINE__, "Blink's table is for %d ranks on one node: it %s for %zu on %zu", RANKS,
        ours ? "chooses" : "leaves the choice to NCCL", ranks, nodes);
  }
  return 0;
}

static int find(const void* context, int function, size_t bytes) {
  int found = UNDEFINED;
  if (context == NULL) return UNDEFINED;
  for (int row = 0; row < (int)(sizeof rows / sizeof *rows); ++row) {
    if (rows[row].function == function && rows[row].least <= bytes) found = row;
  }
  return found;
}

static int stop(void* context) {
  (void)context;
  return 0;
}

/* v2: there is no table that says what NCCL has ruled out. */
static int name_one(void* context, int function, size_t bytes, int collnet, int nvls, int operations, int* algorithm,
                    int* protocol, int* channels) {
  const int row = find(context, function, bytes);
  (void)collnet, (void)operations, (void)channels;
  if (row == UNDEFINED || rows[row].protocol == LL128 || (rows[row].algorithm == 4 && !nvls)) return 0;
  *algorithm = rows[row].algorithm;
  *protocol = rows[row].protocol;
  return 0;
}

/* From v3 on: `costs`, whatever its type says, is one array of algorithms x protocols; below 0 is ruled out. */
static int price(void* context, int function, size_t bytes, float** costs, int algorithms, int protocols) {
  const int row = find(context, function, bytes);
  float* const table = (float*)costs;
  if (row == UNDEFINED || rows[row].algorithm >= algorithms || rows[row].protocol >= protocols) return 0;
  float* const cost = &table[rows[row].algorithm * protocols + rows[row].protocol];
  if (*cost >= 0) *cost = 0;
  return 0;
}

static int price_v3(void* context, int function, size_t bytes, int operations, float** costs, int algorithms,
                    int protocols, int* channels) {
  (void)operations, (void)channels;
  return price(context, function, bytes, costs, algorithms, protocols);
}

static int price_v4(void* context, int function, size_t bytes, int operations, float** costs, int algorithms,
                    int protocols, int registered, int* channels) {
  (void)operations, (void)registered, (void)channels;
  return price(context, function, bytes, costs, algorithms, protocols);
}

static int start_v5(void** context, uint64_t communicator, size_t ranks, size_t nodes, logger log, void* domains,
                    void* constants) {
  (void)communicator, (void)domains, (void)constants;
  return start(ranks, nodes, log, context);
}

#define VISIBLE __attribute__((visibility("default")))

VISIBLE const struct {
  const char* name;
  int (*init)(size_t, size_t, logger, void**);
  int (*choose)(void*, int, size_t, int, int, int, int*, int*, int*);
  int (*destroy)(void*);
} ncclTunerPlugin_v2 = {"Blink", start, name_one, stop};

VISIBLE const struct {
  const char* name;
  int (*init)(size_t, size_t, logger, void**);
  int (*choose)(void*, int, size_t, int, float**, int, int, int*);
  int (*destroy)(void*);
} ncclTunerPlugin_v3 = {"Blink", start, price_v3, stop};

VISIBLE const struct {
  const char* name;
  int (*init)(size_t, size_t, logger, void**);
  int (*choose)(void*, int, size_t, int, float**, int, int, int, int*);
  int (*destroy)(void*);
} ncclTunerPlugin_v4 = {"Blink", start, price_v4, stop};

VISIBLE const struct {
  const char* name;
  int (*init)(void**, uint64_t, size_t, size_t, logger, void*, void*);
  int (*choose)(void*, int, size_t, int, float**, int, int, int, int*);
  int (*finalize)(void*);
} ncclTunerPlugin_v5 = {"Blink", start_v5, price_v4, stop};

VISIBLE const struct {
  const char* name;
  int (*init)(void**, uint64_t, size_t, size_t, logger, void*, void*);
  int (*choose)(void*, int, size_t, int, float**, int, int, int, int*);
  int (*finalize)(void*);
  int (*chunk_size)(void*, int, size_t, int, int, int, size_t*);
} ncclTunerPlugin_v6 = {"Blink", start_v5, price_v4, stop, NULL};
""")
