"""The plans of the native tests: ``python native/tests/plans.py FILE`` writes what the host engine would run.

The file has int64s. A plan has a row in front: its number of words with this row, its kind (its place in KINDS), ranks,
1 for messages with their flags inside, and slots.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.engines.host_plan import INLINE, HostPlan
from blinkccl.schedule.lower import lower
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request

#: Algorithm, collective, and the topology of N ranks; in the order of ``Kind`` in plans.h.
KINDS = (
    ("one_hop", "allreduce", "clique"),
    ("one_shot", "allreduce", "clique"),
    ("double_binary_tree", "allreduce", "clique"),
    ("ring", "allreduce", "oneway"),
    ("one_hop", "broadcast", "clique"),
    ("optimal", "broadcast", "chain"),
    ("one_hop", "allgather", "clique"),
    ("one_hop", "reduce_scatter", "clique"),
)


def main() -> None:
    words = []
    for kind, (name, collective, shape) in enumerate(KINDS):
        for ranks in (2, 3, 4):
            topology = parse_spec(f"{shape}:{ranks}")
            root = dict.fromkeys(COLLECTIVES[collective].parameters, 0)
            forest = algorithm(name).plan(Request(topology, Collective(collective, ranks, **root), topology.ranks))
            for inline, slots in ((0, 1), (0, 2), (0, 3), (1, 1)):
                program = lower(forest, slots)
                if inline:
                    program = replace(program, channels=tuple(replace(c, protocol=INLINE) for c in program.channels))
                rows = np.frombuffer(HostPlan(program).rows, np.int64)
                words += [np.array([len(rows) + 5, kind, ranks, inline, slots]), rows]
    Path(sys.argv[1]).write_bytes(np.concatenate(words).tobytes())


if __name__ == "__main__":
    main()
