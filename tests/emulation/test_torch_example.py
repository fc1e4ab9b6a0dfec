"""examples/train.py as users start it, under torchrun: gloo and blink must learn the same."""

import json
import os
import re
import runpy
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blinkccl.engines import native_library
from blinkccl.errors import UnsupportedError
from support.extras import needs
from support.forked_ranks import RankServer
from support.processes import end_family

distributed = pytest.importorskip("torch.distributed", reason="needs PyTorch")
if not (distributed.is_available() and distributed.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)
try:
    native_library.load()
except UnsupportedError as reason:
    pytest.skip(str(reason), allow_module_level=True)

EXAMPLE = Path(__file__).parents[2] / "examples" / "train.py"
PROGRAMS = Path(__file__).with_name("torch_programs.py")
#: A run takes a few seconds, mostly for importing torch; its ranks end a wait after 60.
LIMIT_S = 100
#: One float32 rounding in each of the steps below changes a loss by a few 1e-7; 1.2e-7 was measured after 30 steps at 3
#: and 4 ranks. A gradient that one rank does not get changes the loss by more than 1e-2.
ROUNDING = 1e-5

pytestmark = [needs("torch"), pytest.mark.timeout(2 * LIMIT_S + 60)]


@pytest.fixture(scope="module")
def plainly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Return a function that runs the example without torchrun, in forked ranks, and returns rank 0's output."""
    place = tmp_path_factory.mktemp("example")
    with RankServer(PROGRAMS, place / "stderr", {**os.environ, "OMP_NUM_THREADS": "1"}) as server:

        def run(size: int, *arguments: str) -> str:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            settings = {"EXAMPLE": ",".join(arguments), "EXAMPLE_OUT": str(place / "out"), "MASTER_PORT": str(port)}
            assert server.failure("train_example", size, **settings) is None
            return (place / "out").read_text()

        yield run


def launched(size: int, *arguments: str) -> str:
    """Run the example under torchrun; return rank 0's output."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    command = [*launcher, str(EXAMPLE), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        finally:
            if process.poll() is None:
                end_family(process.pid)
    assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}:\n{out}\n{err[-6000:]}"
    return out


def losses(out: str) -> list[str]:
    return re.findall(r"^step .* loss \S+", out, re.MULTILINE)


@pytest.mark.parametrize("mode", ["ddp", pytest.param("fsdp2", marks=pytest.mark.slow)])
def test_two_ranks_learn_the_same_to_the_last_bit(mode: str, plainly: Callable[..., str]) -> None:
    by_gloo, by_blink = (plainly(2, "--backend", name, "--mode", mode, "--steps", "8") for name in ("gloo", "blink"))
    assert len(losses(by_gloo)) == 3  # of steps 0, 5 and 7
    assert losses(by_blink) == losses(by_gloo)
    *_, which, last = by_blink.splitlines()
    assert which.startswith("blink: ")
    assert re.fullmatch(rf"{mode}, 2 ranks, 8 steps: losses [0-9a-f]{{16}}, parameters [0-9a-f]{{16}}", last)
    assert last == by_gloo.splitlines()[-1]
    assert launched(2, "--steps", "8", "--mode", mode, "--shared-buckets").splitlines()[-1] == last


@pytest.mark.slow
def test_three_ranks_learn_the_same_but_for_rounding() -> None:
    by_gloo, by_blink = (
        json.loads(launched(3, "--backend", name, "--steps", "8", "--json")) for name in ("gloo", "blink")
    )
    assert (by_gloo["backend"], by_blink["backend"], by_blink["ranks"]) == ("gloo", "blink", 3)
    assert by_blink["losses"] == pytest.approx(by_gloo["losses"], rel=ROUNDING)
    assert by_blink["losses"][-1] < by_blink["losses"][0] - 1, "in 8 steps the loss falls from about 4.3 below 3"


def test_the_example_is_plain_pytorch() -> None:
    assert re.findall(r"^.*blinkccl.*$", EXAMPLE.read_text(), re.MULTILINE) == [
        "        import blinkccl",
        "        blinkccl.torch.shared_buckets(made)",
    ]


def test_unsupported_calls_are_rejected_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--steps", "0"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert ended.value.code == 2
    assert "--steps and --batch must be at least 1, got 0 and 8" in capsys.readouterr().err
