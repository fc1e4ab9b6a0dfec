"""No cyclic imports between modules, also not in functions or for types alone; no class name in two modules.

import-linter orders the rooms (docs/design.md); this test also orders the files of a room.
"""

import ast
from collections import Counter
from pathlib import Path

import grimp
import networkx as nx

from blinkccl.trees.algorithms.registry import ALGORITHMS, NOT_RUN


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("blinkccl", include_external_packages=False, cache_dir=None)
    edges = [(name, other) for name in graph.modules for other in graph.find_modules_directly_imported_by(name)]
    # The registry imports algorithms by name, so these edges are not in the graph.
    edges += [("blinkccl.trees.algorithms.registry", row.module) for row in (*ALGORITHMS.values(), *NOT_RUN.values())]
    circles = nx.strongly_connected_components(nx.DiGraph(edges))
    assert [sorted(circle) for circle in circles if len(circle) > 1] == []


def test_a_class_name_stands_for_one_thing() -> None:
    root = Path(__file__).parents[2]
    files = [*(root / "src").rglob("*.py"), *(root / "reproduction").rglob("*.py")]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
