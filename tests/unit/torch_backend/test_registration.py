"""Registration of the backend with torch: by an import of the package, and without one through both entry points."""

import logging
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from blinkccl import torch_autoload
from support.extras import needs

pytestmark = needs("torch")
torch = pytest.importorskip("torch", reason="needs PyTorch")
dist = pytest.importorskip("torch.distributed")

ROOT = Path(__file__).parents[3]


def python(program: str, *path: Path) -> str:
    """Output of a fresh interpreter; ``path`` precedes all other entries."""
    script = f"import sys; sys.path[:0] = {[str(entry) for entry in path]!r}\n{program}"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory with the entry points of pyproject.toml, like that of an installation."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = tmp_path / "blink_under_test-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: blink-under-test\nVersion: 1\n")
    lines = []
    for group, entries in named.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_an_import_registers_it_for_cpu_tensors():
    output = python(
        "import torch.distributed as dist, blinkccl.torch_backend as backend; backend.register();"
        "print(dist.Backend.backend_capability['blink'], dist.Backend('BLINK'))"
    )
    assert output == "['cpu'] blink"


def test_torch_finds_it_without_an_import(installed):
    program = """
import torch, torch.distributed as dist
assert ("blinkccl.torch_backend" in sys.modules) == (tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14))
assert "blinkccl.torch_backend.process_group" not in sys.modules
dist.init_process_group("blink", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(2)
dist.all_reduce(tensor)
print(type(dist.group.WORLD).__module__, dist.get_backend())
dist.destroy_process_group()
"""
    assert python(program, installed).splitlines()[-1] == "blinkccl.torch_backend.process_group blink"


def test_both_generations_of_torch_have_their_entry_point():
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert named["torch.backends"]["blink"] == "blinkccl.torch_autoload:autoload"
    assert named["torch.distributed.backends"]["blink"] == "blinkccl.torch_backend:register"


@pytest.mark.parametrize(
    ("version", "loads"), [("2.11.0", True), ("2.13.1+cpu", True), ("2.14.0.dev1", False), ("2.15.0", False)]
)
def test_autoload_is_for_torch_before_2_14(monkeypatch, version, loads):
    modules = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
    monkeypatch.setattr(torch_autoload, "import_module", modules.append)
    torch_autoload.autoload()
    assert modules == ["blinkccl.torch_backend"] * loads


def test_the_switch_gives_programs_of_gloo_blink(installed):
    program = """
import os
os.environ["BLINK_FOR"] = "gloo"
import torch, torch.distributed as dist
for backend in ("gloo", None):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    print(type(dist.group.WORLD).__name__, type(dist.new_group([0])).__name__, dist.get_backend())
    dist.destroy_process_group()
"""
    named = [line.split() for line in python(program, installed).splitlines()]
    assert [row[:2] for row in named] == [["BlinkProcessGroup"] * 2] * 2
    assert named[0][2] == "gloo"


def test_an_error_of_a_group_in_place_of_gloo_names_the_switch(monkeypatch):
    from blinkccl.torch_backend import for_gloo, process_group

    def refused(_: object) -> None:
        raise RuntimeError("no network here")

    monkeypatch.setattr(process_group, "create", refused)
    with for_gloo.serving(), pytest.raises(RuntimeError, match="no network here") as raised:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert "unset the variable on all ranks" in raised.value.__notes__[0]
    assert not dist.is_initialized()


def test_another_value_of_the_switch_is_a_warning(monkeypatch, caplog):
    monkeypatch.setenv("BLINK_FOR", "nccl")
    torch_autoload.autoload()
    assert "BLINK_FOR: expected gloo, got 'nccl'" in caplog.text


@pytest.mark.parametrize("version", ["2.13.0", "not a version"])
def test_autoload_never_fails(monkeypatch, caplog, version):
    def broken(_: str) -> None:
        raise ImportError("half an installation")

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
    monkeypatch.setattr(torch_autoload, "import_module", broken)
    with caplog.at_level(logging.WARNING):
        torch_autoload.autoload()
    assert "backend blink is not registered with torch" in caplog.text


@pytest.mark.parametrize(("switch", "has", "kernels"), [("", True, True), ("gloo", True, False), ("gloo", False, None)])
def test_vllm_takes_its_kernels_unless_the_switch_is_on(monkeypatch, caplog, switch, has, kernels):
    from blinkccl.torch_backend import vllm_plugin

    communicator = type("CpuCommunicator", (), {"_all_group_ranks_share_shm_group_name": lambda _: True} if has else {})
    name = "vllm.distributed.device_communicators.cpu_communicator"
    for package in ("vllm", "vllm.distributed", "vllm.distributed.device_communicators"):
        monkeypatch.setitem(sys.modules, package, SimpleNamespace())
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(CpuCommunicator=communicator))
    monkeypatch.setenv("BLINK_FOR", switch)
    vllm_plugin.register()
    if has:
        assert communicator()._all_group_ranks_share_shm_group_name() == kernels
    assert ("this vLLM keeps its own kernels" in caplog.text) == (not has)


def test_importing_blinkccl_loads_no_torch():
    modules = "blinkccl, blinkccl.torch_autoload, blinkccl.runtime.store"
    assert python(f"import {modules}; print('torch' in sys.modules)") == "False"
