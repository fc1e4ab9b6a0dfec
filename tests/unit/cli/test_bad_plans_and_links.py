"""Bad plans and links end with the right exit code and a sentence with place, fault and remedy, without a traceback."""

import json
from pathlib import Path

import pytest

from support import foreign_files as files

#: Primes of ten digits.
PRIMES = (1_000_000_007, 1_000_000_009, 1_000_000_021, 1_000_000_033, 1_000_000_087)
Links = list[tuple[int, int, int]]


def topology(folder: Path, links: Links, gpus: int, switches: int = 0) -> Path:
    """A topology file: GPUs, then switches, and directed links ``(src, dst, capacity in bytes per second)``."""
    kinds = ["gpu"] * gpus + ["switch"] * switches
    vertices = [{"id": i, "kind": kind, "server": 0, "name": f"V{i}"} for i, kind in enumerate(kinds)]
    listed = [
        {"src": u, "dst": v, "capacity": c, "kind": "nvlink", "gb_per_s": c * 1e-9, "provenance": "declared"}
        for u, v, c in links
    ]
    document = {"schema_version": 2, "name": "bad", "unit_gb_per_s": 1e-9, "vertices": vertices, "links": listed}
    path = folder / "bad.json"
    path.write_text(json.dumps(document))
    return path


def both_ways(links: Links) -> Links:
    return [each for u, v, c in links for each in ((u, v, c), (v, u, c))]


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter", "broadcast", "alltoall"])
def test_primes_of_ten_digits_are_capacities_like_others(blink, tmp_path: Path, collective: str) -> None:
    ends = ((0, 1), (1, 2), (2, 3), (3, 0), (0, 2))
    machine = topology(tmp_path, both_ways([(u, v, c) for (u, v), c in zip(ends, PRIMES, strict=True)]), 4)
    plan = tmp_path / "plan.json"
    assert blink("plan", collective, "--topo", machine, "--objective", "exact", "-o", plan).code == 0
    assert blink("check", plan).code == 0


def test_weights_that_do_not_fit_are_refused_with_chunks_that_do(blink, tmp_path: Path) -> None:
    machine = topology(tmp_path, both_ways([(0, 1, PRIMES[0]), (1, 2, PRIMES[1]), (2, 0, PRIMES[2])]), 3)
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    assert blink("plan", "broadcast", "--topo", machine, "--objective", "exact", "-o", plan).code == 0
    refused = blink("export", plan, "--to", "mscclpp")
    refused.assert_refused("the shares have the common denominator")
    assert "these fit: --chunks 64 (" in refused.err
    assert blink("export", plan, "--to", "mscclpp", "--chunks", "64", "-o", out).code == 0
    assert blink("check", out).code == 0


def test_ranks_that_nothing_reaches_are_named(blink, tmp_path: Path) -> None:
    apart = topology(tmp_path, both_ways([(0, 1, 5), (2, 3, 5)]), 4)
    blink("plan", "allreduce", "--topo", apart).assert_refused("in 2 parts: {0,1} and {2,3}")
    one_way = topology(tmp_path, [(0, 1, 5), (1, 2, 5)], 3)
    blink("plan", "broadcast", "--topo", one_way).assert_refused("some links lead only one way")


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast"])
def test_switches_that_give_out_more_than_they_take_in_are_named_and_planned_with(
    blink, tmp_path: Path, collective: str
) -> None:
    """A balanced switch beside it is not named."""
    links = [(0, 4, 5), (1, 4, 5), (4, 0, 5), (4, 1, 7), (2, 5, 5), (3, 5, 5), (5, 2, 5), (5, 3, 5)]
    machine = topology(tmp_path, [*links, (4, 5, 4), (5, 4, 4)], 4, 2)
    shown = blink("topo", machine)
    assert "V4 receives 14 and sends 16 units" in shown.out
    assert "V5 takes" not in shown.out
    plan = tmp_path / "plan.json"
    assert blink("plan", collective, "--topo", machine, "-o", plan).code == 0
    assert blink("check", plan, "--topo", machine).code == 0


WRONG = [
    (files.text(files.read_allreduce()).replace('"signal"', '"nop"'), "deadlock: 2 thread block(s) wait forever"),
    (files.text(files.put_reduce_scatter()).replace('"sem_acquire"', '"nop"'), "race: "),
    (files.text(files.read_allreduce()).replace('"rres"', '"rre"'), None),
    (files.text(files.read_allreduce()).replace('_chunks": 2', f'_chunks": {PRIMES[0]}'), None),
    (files.text(files.pipelined_allreduce()).replace(f": {files.UNIT}", f": {PRIMES[0]}"), None),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_foreign_plans_that_are_wrong_end_with_a_sentence(
    blink, tmp_path: Path, text: str, message: str | None
) -> None:
    """Without a ``message``, an unreadable plan is refused (2); a wrong one fails the check (1) with a remedy."""
    path = tmp_path / "a.json"
    path.write_text(text)
    ended = blink("check", path)
    if message is None and ended.code == 2:
        assert ended.err.startswith("blink: error: ")
        assert str(path.name) in ended.err
        return
    assert ended.code == 1
    assert message is None or message in ended.out
    assert "\nto do   " in ended.out
