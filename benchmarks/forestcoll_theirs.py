"""One job of ``forestcoll.py`` in ForestColl's code, in a process of its own: JSON on stdin, the answers on stdout.

    python forestcoll_theirs.py CHECKOUT < job.json

The checkout belongs to others: nothing of it is copied, and only functions that its README shows are called. The rate
of its trees is measured here, exactly: the fullest link determines it.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

#: A rank, the weight of one tree from it in units of 1/k of its block, and the tree's hops as sequences of vertices.
Tree = tuple[Hashable, int, Sequence[Sequence[Hashable]]]


def rate_of(trees: Iterable[Tree], k: int, ranks: int, capacity: Mapping[tuple[Hashable, Hashable], int]) -> Fraction:
    """S per unit of time at which the fullest link is exactly full; every rank's block is S / ``ranks``."""
    load: Counter[tuple[Hashable, Hashable]] = Counter()
    for _, units, hops in trees:
        for hop in hops:
            for arc in pairwise(hop):
                load[arc] += units
    return min(Fraction(capacity[arc] * k * ranks, units) for arc, units in load.items())


def depth_of(trees: Iterable[Tree]) -> int:
    """Largest number of hops from a root to a rank; switches within a hop are not counted."""
    deepest = 0
    for root, _, hops in trees:
        below = defaultdict(list)
        for hop in hops:
            below[hop[0]].append(hop[-1])
        level, depth = [root], -1
        while level:
            level, depth = [v for u in level for v in below[u]], depth + 1
        deepest = max(deepest, depth)
    return deepest


def checked_trees(trees: Sequence[Tree], k: int, ranks: set[Hashable]) -> Sequence[Tree]:
    """The same trees; SystemExit unless each reaches every rank once, and those of a root carry its whole block."""
    carried: Counter[Hashable] = Counter()
    for root, units, hops in trees:
        carried[root] += units
        if Counter([root, *(hop[-1] for hop in hops)]) != Counter(ranks):
            raise SystemExit(f"a tree from {root} does not reach every rank once")
    if carried != Counter(dict.fromkeys(ranks, k)):
        raise SystemExit(f"the trees carry {dict(carried)} of {k} units from each rank")
    return trees


def graph_of(fields: Mapping[str, Any]) -> tuple[Any, list[int]]:
    """A topology of our JSON as ForestColl's graph and ranks: capacities in our units."""
    nx: Any = importlib.import_module("networkx")
    graph = nx.DiGraph()
    for link in fields["links"]:
        graph.add_edge(link["src"], link["dst"], capacity=link["capacity"])
    return graph, sorted(v["id"] for v in fields["vertices"] if v["kind"] in ("gpu", "cpu"))


def planned(plan: Any, graph: Any, ranks: list[Any], unit: Fraction) -> dict[str, Any]:
    """Rate, seconds and the shape of the trees."""
    wall, began = time.perf_counter(), time.process_time()
    (_, k), (trees, units) = plan(graph, compute_nodes=ranks)
    taken = {"seconds": time.process_time() - began, "wall_s": time.perf_counter() - wall}
    trees: list[Tree] = [
        (root, units[root, i], [(path[0][0], *(b for _, b in path)) for path in paths])
        for (root, i), paths in trees.items()
    ]
    checked_trees(trees, k, set(ranks))
    capacity = {(u, v): graph[u][v]["capacity"] for u, v in graph.edges()}
    return {
        "optimum": str(rate_of(trees, k, len(ranks), capacity) * unit),
        **taken,
        "depth": depth_of(trees),
        "trees_per_root": len(trees) / len(ranks),
        "denominator": max(Fraction(weight, k).denominator for _, weight, _ in trees),
    }


def drawn(topologies: Any, name: str, servers: int) -> dict[str, Any]:
    """One of ForestColl's topologies in our JSON: in units of their common divisor, GPUs first."""
    graph, ranks = getattr(topologies, name)(servers)
    number = {vertex: i for i, vertex in enumerate([*ranks, *(v for v in graph if v not in set(ranks))])}
    parts = [data["capacity"] for _, _, data in graph.edges(data=True)]
    unit = max(d for d in range(1, min(parts) + 1) if not any(part % d for part in parts))
    inside = "nvlink" if name == "a100_topology" else "xgmi"
    kind = {"GPU": "gpu", "NVSwitch": "switch", "mlx5": "nic", "IB": "switch"}
    return {
        "name": f"{name}({servers})",
        "unit_gb_per_s": unit,
        "vertices": [{"id": i, "kind": kind[v[1]], "server": max(v[0], 0)} for v, i in number.items()],
        "links": [
            {
                "src": number[u],
                "dst": number[v],
                "capacity": data["capacity"] // unit,
                "kind": "net" if {u[1], v[1]} & {"mlx5", "IB"} else inside,
            }
            for u, v, data in graph.edges(data=True)
        ],
    }


def main() -> None:
    """Read one job, run it, print the answers."""
    sys.path.insert(0, sys.argv[1])
    code, topologies = importlib.import_module("pipeline_allgather"), importlib.import_module("topologies")
    job = json.load(sys.stdin)
    if not job["topologies"]:
        json.dump({"topology": drawn(topologies, *job["foreign"])}, sys.stdout)
        return
    if job["foreign"]:
        name, servers = job["foreign"]
        graphs = [(*getattr(topologies, name)(servers), Fraction(1))]
    else:
        graphs = [(*graph_of(fields), Fraction(fields["unit_gb_per_s"])) for fields in job["topologies"]]
    answers = [planned(code.optimal_pipeline_spanning_trees, *graph) for graph in graphs]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    json.dump({"answers": answers, "peak_mib": peak}, sys.stdout)


if __name__ == "__main__":
    main()
