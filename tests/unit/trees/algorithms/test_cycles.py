"""Packings of Hamiltonian cycles: known counts, and every packing fits its links."""

import random
from collections import Counter
from itertools import combinations, permutations

import pytest

from blinkccl.trees.algorithms.cycles import Arc, Cycle, all_cycles, hamiltonian_path, max_disjoint_cycles


def _clique(n: int, lanes: int = 1) -> dict[Arc, int]:
    return dict.fromkeys(permutations(range(n), 2), lanes)


def _count(packed: tuple[tuple[Cycle, int], ...]) -> int:
    return sum(times for _, times in packed)


def _arcs(cycle: Cycle) -> list[Arc]:
    return list(zip(cycle, (*cycle[1:], cycle[0]), strict=True))


def _assert_fits(packed: tuple[tuple[Cycle, int], ...], capacity: dict[Arc, int], n: int) -> None:
    use: Counter[Arc] = Counter()
    for cycle, times in packed:
        assert sorted(cycle) == list(range(n))
        for arc in _arcs(cycle):
            use[arc] += times
    assert all(use[arc] <= capacity.get(arc, 0) for arc in use)


@pytest.mark.parametrize(("n", "most"), [(2, 1), (3, 2), (4, 2), (5, 4), (6, 4), (7, 6), (8, 7)])
def test_complete_digraphs_decompose_except_four_and_six(n: int, most: int) -> None:
    """Tillson 1980: the complete digraph splits into n−1 Hamiltonian cycles unless n is 4 or 6."""
    packed = max_disjoint_cycles(_clique(n), range(n))
    _assert_fits(packed, _clique(n), n)
    assert _count(packed) == most


def test_four_vertices_with_two_lanes_hold_three_times_two() -> None:
    assert _count(max_disjoint_cycles(_clique(4, 2), range(4))) == 6


def test_no_cycle() -> None:
    chain = {arc: 1 for u in range(3) for arc in ((u, u + 1), (u + 1, u))}
    assert max_disjoint_cycles(chain, range(4)) == ()
    assert max_disjoint_cycles({}, range(12)) == ()


def test_greedy_packing_beyond_eight_vertices_fits() -> None:
    capacity = _clique(12)
    packed = max_disjoint_cycles(capacity, range(12))
    _assert_fits(packed, capacity, 12)
    assert _count(packed) >= 8


def _most_by_force(capacity: dict[Arc, int], n: int) -> int:
    """The size of the largest set of cycles that fits, by trying all sets (one lane per arc)."""
    cycles = [frozenset(_arcs(cycle)) for cycle in all_cycles(capacity, range(n))]
    for size in range(n, 0, -1):
        for some in combinations(cycles, size):
            if sum(map(len, some)) == len(frozenset().union(*some)):
                return size
    return 0


@pytest.mark.parametrize("seed", range(12))
def test_maximum_on_random_digraphs(seed: int) -> None:
    draw = random.Random(seed)
    capacity = {arc: 1 for arc in permutations(range(5), 2) if draw.random() < 0.75}
    packed = max_disjoint_cycles(capacity, range(5))
    _assert_fits(packed, capacity, 5)
    assert _count(packed) == _most_by_force(capacity, 5)


@pytest.mark.parametrize("seed", range(6))
def test_irregular_dense_graphs_end_in_time_and_fit(seed: int) -> None:
    draw = random.Random(seed)
    capacity = {arc: draw.randint(1, 3) for arc in permutations(range(8), 2) if draw.random() < 0.6}
    _assert_fits(max_disjoint_cycles(capacity, range(8)), capacity, 8)


def test_hamiltonian_path_prefers_wide_arcs() -> None:
    arcs = {(0, 1): 1, (1, 0): 1, (0, 2): 5, (2, 0): 5, (2, 1): 1, (1, 2): 1}
    assert hamiltonian_path(arcs, (0, 1, 2)) == (0, 2, 1)
    assert hamiltonian_path(arcs, (0, 1, 2), start=1) == (1, 0, 2)
    assert hamiltonian_path({(0, 1): 1, (1, 2): 1}, (0, 1, 2), closed=True) is None
    assert hamiltonian_path({(0, 1): 1, (2, 1): 1}, (0, 1, 2)) is None


def test_hamiltonian_path_through_many_vertices() -> None:
    line = {(u, u + 1): 1 for u in range(2000)}
    assert hamiltonian_path(line, range(2001)) == tuple(range(2001))


@pytest.mark.parametrize("vertices", [4, 9])
def test_lanes_of_ten_digits_are_packed_by_bundles(vertices: int) -> None:
    """A cycle gets all lanes of its narrowest arc, and no arc has more cycles than lanes."""
    ends = [(v, (v + 1) % vertices) for v in range(vertices)]
    prime = 1_000_000_007
    order = tuple(range(vertices))
    assert max_disjoint_cycles({arc: prime + 2 * place for place, arc in enumerate(ends)}, order) == ((order, prime),)
    wide = {arc: prime for u, v in ends for arc in ((u, v), (v, u))}
    packed = max_disjoint_cycles(wide, order)
    assert sum(count for _, count in packed) == 2 * prime
    used = Counter[tuple[int, int]]()
    for cycle, count in packed:
        for arc in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
            used[arc] += count
    assert all(used[arc] <= lanes for arc, lanes in wide.items())
