"""BLINK_DETERMINISTIC=order under an NCCL program: sums of any size have the bits of one order, or are errors."""

import sys
from pathlib import Path

import numpy as np
import pytest
from preloaded import Outcome, Preloaded

from blinkccl.collectives.ops import DTYPES, OPS
from blinkccl.trees.algorithms.registry import algorithm
from support.orders import evaluated, rough, same_bits
from support.planned import asked

#: Counts for one channel and for all, for several protocols and numbers of messages.
COUNTS = (1, 1000, 130_000)
TILE = 997
#: vLLM's settings for its batch-invariant mode, which give NCCL's sums one order (batch_invariant.py).
VLLM: dict[str, object] = {
    "NCCL_LAUNCH_MODE": "GROUP",
    "NCCL_COLLNET_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_P2P_NET_DISABLE": "1",
    "NCCL_MIN_NCHANNELS": "1",
    "NCCL_MAX_NCHANNELS": "1",
    "NCCL_PROTO": "Simple",
    "NCCL_ALGO": "allreduce:tree",
    "NCCL_NTHREADS": "1",
    "NCCL_SOCKET_NTHREADS": "1",
}


def ran(preloaded: Preloaded, place: Path, ranks: int, **variables: object) -> tuple[Outcome, list[np.ndarray]]:
    """Run the client on all ranks; returns the outcome and the inputs."""
    values = rough(DTYPES["float32"], ranks, TILE, seed=ranks)
    for rank, each in enumerate(values):
        each.tofile(place / f"in.{rank}")
    client, library = Path(__file__).with_name("ordered_client.py"), preloaded.built.library
    commands = [
        [sys.executable, client, library, str(ranks), str(rank), place / "id", place, *map(str, COUNTS)]
        for rank in range(ranks)
    ]
    variables = {"BLINK_DETERMINISTIC": "order", "LD_PRELOAD": None, **variables}
    return preloaded.run(commands, timeout_s=150, BLINK_NCCL_LIB=preloaded.built.doubles.nccl, **variables), values


@pytest.mark.parametrize(
    ("topo", "ranks", "variables"), [("dgx-1v", 5, {}), ("clique:4", 4, VLLM | {"BLINK_ALGO": None})]
)
def test_sums_of_all_sizes_have_one_order(
    preloaded: Preloaded, tmp_path: Path, topo: str, ranks: int, variables: dict[str, object]
) -> None:
    """Also for sums for which NCCL is predicted to be faster, and with settings for one order of NCCL's own sums."""
    outcome, values = ran(preloaded, tmp_path, ranks, BLINK_TOPO=topo, **variables)
    overruled = [line for line in outcome.ended[0].err.splitlines() if "BLINK_DETERMINISTIC=order overrules" in line]
    assert len(overruled) == bool(variables)
    for line in overruled:
        assert "NCCL_ALGO=allreduce:tree, NCCL_PROTO=Simple, NCCL_MAX_NCHANNELS=1, NCCL_MIN_NCHANNELS=1" in line
    assert [(one.code, one.out) for one in outcome.ended] == [(0, "")] * ranks, outcome.ended
    assert not {"AllReduce", "Reduce", "ReduceScatter"} & set(outcome.reached_nccl())
    order = algorithm("auto").plan(asked(topo, "allreduce", tuple(range(ranks)), deterministic="order")).order
    assert order
    expected = evaluated(order, dict(enumerate(values)), DTYPES["float32"], OPS["sum"])
    for count in COUNTS:
        everywhere, blocks = np.resize(expected, count), np.resize(expected, ranks * count)
        for rank in range(ranks):
            assert same_bits(np.fromfile(tmp_path / f"AllReduce.{count}.{rank}", np.float32), everywhere)
            part = np.fromfile(tmp_path / f"ReduceScatter.{count}.{rank}", np.float32)
            assert same_bits(part, blocks[rank * count :][:count])
        assert same_bits(np.fromfile(tmp_path / f"Reduce.{count}.{count % ranks}", np.float32), everywhere)


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"BLINK_ALGO": "ring"}, "needs trees for every sum; allreduce: ring sums elements in several orders"),
        ({"BLINK_ALGO": "nccl"}, "BLINK_ALGO=nccl"),
        ({"BLINK_DETERMINISTIC": "bits"}, "BLINK_DETERMINISTIC='bits': expected order, or nothing"),
    ],
)
def test_sums_that_need_nccl_are_errors(
    preloaded: Preloaded, tmp_path: Path, variables: dict[str, object], why: str
) -> None:
    """On every rank, with one message; calls that only move data go to NCCL as always."""
    outcome, _ = ran(preloaded, tmp_path, 3, BLINK_TOPO="clique:3", **variables)
    names = ("AllReduce", "Reduce", "ReduceScatter")
    refused = [f"{name} {count} 5" for count in COUNTS for name in names]  # ncclInvalidUsage
    assert [(one.code, one.out.splitlines()) for one in outcome.ended] == [(0, refused)] * 3, outcome.ended
    assert set(outcome.reached_nccl()) == {"Broadcast"}
    errors = [line for one in outcome.ended for line in one.err.splitlines() if line.startswith("blink: error: ")]
    assert len(errors) == len(refused)
    for line in errors:
        assert "BLINK_DETERMINISTIC=order needs Blink for this call, as NCCL sums in its own order: " in line
        assert why in line
        assert line.endswith("unset BLINK_DETERMINISTIC to let NCCL run the call")
