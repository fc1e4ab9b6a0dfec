"""No two modules need each other, also not through imports inside functions or for types alone.

import-linter keeps rooms in their rows (docs/design.md); this keeps the files of a room in an order, too.
"""

from __future__ import annotations

import grimp
import networkx as nx

from blinkccl.algorithms.registry import ALGORITHMS, NOT_RUN


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("blinkccl", include_external_packages=False, cache_dir=None)
    edges = [(name, other) for name in graph.modules for other in graph.find_modules_directly_imported_by(name)]
    # The registry imports algorithms by name.
    edges += [("blinkccl.algorithms.registry", row.module) for row in (*ALGORITHMS.values(), *NOT_RUN.values())]
    circles = nx.strongly_connected_components(nx.DiGraph(edges))
    assert [sorted(circle) for circle in circles if len(circle) > 1] == []
