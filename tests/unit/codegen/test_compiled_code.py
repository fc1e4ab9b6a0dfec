"""Compiled code: compiled once, cached for later processes, never used from directories that others can write."""

import os
import re
import stat
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from blinkccl.codegen import build as builds
from blinkccl.codegen import device_files
from blinkccl.codegen import gpu_compiler as gpu_compilers
from blinkccl.codegen.build import build
from blinkccl.codegen.command import _Failures, compiled, run
from blinkccl.codegen.gpu_compiler import Nvcc, Nvrtc, NvrtcFacts, gpu_compiler, nvcc
from blinkccl.codegen.host_compiler import HostCompiler
from blinkccl.errors import InternalError, UnsupportedError
from doubles.build import Doubles, nvrtc_wheel
from support.emulation import CXX, needs_compiler
from support.processes import until_gone


@dataclass
class Counting:
    """A compiler that returns its text and counts its calls."""

    include: Path
    version: str = "1"
    suffix: str = ".so"
    calls: int = 0

    def fingerprint(self) -> str:
        return self.version

    def compile(self, text: str, deadline_s: float) -> bytes:
        self.calls += 1
        return f"{self.version}: {text}".encode()


@pytest.fixture
def compiler(tmp_path: Path) -> Counting:
    (tmp_path / "include" / "blink").mkdir(parents=True)
    (tmp_path / "include" / "blink" / "context.h").write_text("// one\n")
    return Counting(tmp_path / "include")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BLINK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "builds"


def test_the_same_is_compiled_once_and_anything_else_again(compiler: Counting, cache: Path) -> None:
    first = build("a", compiler)
    assert first.parent == cache
    assert first.suffix == ".so"
    assert first.read_bytes() == b"1: a"
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert build("a", compiler) == first
    assert compiler.calls == 1
    assert build("b", compiler) != first
    compiler.version = "2"
    assert build("a", compiler) != first
    other = Counting(compiler.include.parent / "other", "2")
    (other.include / "blink").mkdir(parents=True)
    (other.include / "blink" / "context.h").write_text("// two\n")
    assert build("a", other) != build("a", compiler)
    assert (compiler.calls, other.calls) == (3, 1)
    assert sorted(path.name[0] for path in cache.iterdir()) != ["."]


def test_without_a_usable_directory_it_goes_to_a_temporary_one(
    compiler: Counting, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    builds._note.cache_clear()
    cache.parent.mkdir()
    cache.write_text("a file where the directory should be")
    path = build("a", compiler)
    assert path.read_bytes() == b"1: a"
    assert cache not in path.parents
    assert str(cache) in caplog.text
    assert build("a", compiler) == path
    assert caplog.text.count("cannot be used") == 1
    monkeypatch.setenv("BLINK_CACHE", "")
    caplog.clear()
    assert build("a", compiler) == path  # the user wants no cache, so no warning
    assert caplog.text == ""


def test_what_others_could_have_written_is_not_loaded(
    compiler: Counting, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = build("a", compiler)
    os.chmod(cache, 0o777)
    builds._note.cache_clear()
    assert build("a", compiler).parent != cache
    assert "other users could" in caplog.text
    os.chmod(cache, 0o700)
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert build("a", compiler).read_bytes() == b"1: a"
    assert not path.is_symlink()


def test_old_code_makes_room(compiler: Counting, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "MAX_BYTES", 25)
    paths = []
    for number in range(5):
        paths.append(build(f"text {number}", compiler))
        os.utime(paths[-1], (1000 + number, 1000 + number))
    left = sorted(path.name for path in cache.iterdir())
    assert paths[-1].name in left
    assert paths[0].name not in left
    assert len(left) == 2


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary directory for the files of failures."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("blinkccl.codegen.command._failures", _Failures())


def test_a_failure_says_why_and_keeps_the_text() -> None:
    with pytest.raises(InternalError, match=r"refuses the generated code \(exit code 3\)") as failure:
        compiled("int x;\n", ".cu", lambda source, output: ["sh", "-c", f"echo no good; cat {source}; exit 3"], 10)
    message = str(failure.value)
    assert "no good\n  int x;" in message
    (saved,) = Path(message.split("log are in ")[1].split(":")[0]).glob("*.cu")
    assert saved.read_text() == "int x;\n"
    assert "no good" in saved.with_suffix(".log").read_text()
    with pytest.raises(InternalError) as another:
        compiled("int y;\n", ".cu", lambda source, output: ["sh", "-c", "exit 3"], 10)
    assert str(saved.parent) in str(another.value), "a plan's files fail together"


def test_a_slow_compiler_is_ended_with_its_children(tmp_path: Path) -> None:
    began = time.monotonic()
    script = f"(sleep 60 & echo $! > {tmp_path}/pid; wait) & wait"
    with pytest.raises(UnsupportedError, match=r"sh took longer than 0.5 s for the generated code"):
        run(["sh", "-c", script], 0.5)
    assert time.monotonic() - began < 20
    until_gone([int((tmp_path / "pid").read_text())])


def test_a_missing_compiler_is_reported_as_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="no-such-compiler cannot be started"):
        run(["no-such-compiler"], 1)


@needs_compiler
def test_wrong_code_is_refused_by_the_host_compiler(tmp_path: Path) -> None:
    assert CXX is not None
    compiler = HostCompiler(CXX, tmp_path, tmp_path / "none.so")
    with pytest.raises(InternalError, match="exit code 1"):
        compiler.compile("#error this is wrong\n", 60)


def test_missing_headers_are_reported_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(device_files.INCLUDE_OVERRIDE, str(tmp_path))
    with pytest.raises(UnsupportedError, match=r"does not hold blink/context.h.*reinstall blink-ccl"):
        device_files.include_directory()


def test_missing_gpu_compilers_are_reported_with_all_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_compilers, "nvrtc_libraries", lambda: ())
    monkeypatch.setattr(gpu_compilers, "find_nvcc", lambda: None)
    line = re.escape(f'{sys.executable} -m pip install --upgrade "nvidia-cuda-nvrtc<14"')
    message = rf"no compiler for sm_90; install one: {line} \(there is no libnvrtc: .*; there is no nvcc: "
    with pytest.raises(UnsupportedError, match=message):
        gpu_compiler("sm_90")


@pytest.mark.parametrize(
    ("architecture", "driver", "wheel"),
    [
        ("sm_90", None, '"nvidia-cuda-nvrtc<14"'),
        ("sm_90", (13, 0), '"nvidia-cuda-nvrtc<14"'),
        ("sm_90", (12, 4), "nvidia-cuda-nvrtc-cu12"),
        ("sm_80", (11, 8), "nvidia-cuda-nvrtc-cu11"),
        ("sm_70", (13, 0), "nvidia-cuda-nvrtc-cu12"),
        ("sm_70", None, "nvidia-cuda-nvrtc-cu12"),
        ("sm_120", (14, 1), '"nvidia-cuda-nvrtc<15"'),
    ],
)
def test_the_installed_wheel_serves_gpu_and_driver(
    architecture: str, driver: tuple[int, int] | None, wheel: str
) -> None:
    assert gpu_compilers.install_line(architecture, driver).endswith(f" -m pip install --upgrade {wheel}")


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixture without GPU compilers, apart from those that a test adds to sys.path."""
    for name in (gpu_compilers.NVRTC, gpu_compilers.NVCC, "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if not Path(one, "nvidia").exists()])
    monkeypatch.setattr(gpu_compilers, "_DIRECTORIES", ())
    monkeypatch.setattr("shutil.which", lambda name: None)


def test_every_nvrtc_is_tried_and_the_newest_first(
    nothing_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_12, of_13 = tmp_path / "nvidia" / "cuda_nvrtc" / "lib", tmp_path / "nvidia" / "cu13" / "lib"
    for place, names in {
        of_12: ("libnvrtc.so.9", "libnvrtc.so.12", "libnvrtc.alt.so.13", "libnvrtc-builtins.so.12.9"),
        of_13: ("libnvrtc.so.13",),
    }.items():
        place.mkdir(parents=True)
        for name in names:
            (place / name).write_text("no library")
    (of_12 / "libnvrtc.so").symlink_to("libnvrtc.so.12")
    monkeypatch.syspath_prepend(str(tmp_path))
    libraries = gpu_compilers.nvrtc_libraries()
    assert libraries == (of_13 / "libnvrtc.so.13", of_12 / "libnvrtc.so.12", of_12 / "libnvrtc.so.9")
    with pytest.raises(UnsupportedError, match=r"libnvrtc.so.12 cannot be used"):
        gpu_compilers.nvrtc_facts(libraries[1])
    facts = {
        "libnvrtc.so.13": NvrtcFacts((13, 0), ("sm_90", "sm_120")),
        "libnvrtc.so.12": NvrtcFacts((12, 9), ("sm_70", "sm_90")),
        "libnvrtc.so.9": NvrtcFacts((9, 0), ("sm_70",)),
    }
    monkeypatch.setattr(gpu_compilers, "nvrtc_facts", lambda library: facts[library.name])

    def selected(architecture: str, driver: tuple[int, int] | None) -> str:
        compiler = gpu_compiler(architecture, driver)
        assert isinstance(compiler, Nvrtc)
        return compiler.library.name

    assert selected("sm_90", (13, 2)) == "libnvrtc.so.13"
    assert selected("sm_90", (12, 2)) == "libnvrtc.so.12"
    assert selected("sm_70", (13, 2)) == "libnvrtc.so.12"
    assert selected("sm_120", (12, 8)) == "libnvrtc.so.13"  # no other serves it


@pytest.fixture
def wheel_of_13(nothing_installed: None, doubles: Doubles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test double of NVRTC 13.0, installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return nvrtc_wheel(tmp_path)


def test_the_builtins_beside_nvrtc_are_loaded(wheel_of_13: Path, tmp_path: Path) -> None:
    """The wheels of CUDA 13.0 have no run path: NVRTC opens its builtins by name. Other versions are not loaded."""
    (wheel_of_13.parent / "libnvrtc-builtins.so.12.9").write_text("no library")
    compiler = gpu_compiler("sm_90", (13, 0))
    assert isinstance(compiler, Nvrtc)
    assert compiler.library == wheel_of_13
    elsewhere = tmp_path / "libnvrtc.so.13"
    elsewhere.symlink_to(wheel_of_13)  # like those of /usr/local/cuda
    assert gpu_compilers.nvrtc_facts(elsewhere).version == (13, 0)
    alone = tmp_path / "alone" / "libnvrtc.so.13"
    alone.parent.mkdir()
    alone.write_bytes(wheel_of_13.read_bytes())
    with pytest.raises(UnsupportedError, match="nvrtcCompileProgram: NVRTC_ERROR_BUILTIN_OPERATION_FAILURE"):
        gpu_compilers.nvrtc_facts(alone)


def test_errors_of_nvrtc_are_reported_verbatim(wheel_of_13: Path) -> None:
    log = r"libnvrtc.so.13 refuses the generated code \(.*:\n  blink.cu\(1\): error: no licence\n  nvrtcCompileProgram"
    with pytest.raises(InternalError, match=log):
        gpu_compiler("sm_90").compile("int x;\n", 60)


def test_an_nvcc_of_a_wheel_is_used(nothing_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "nvidia" / "cu13" / "bin"
    place.mkdir(parents=True)
    (place / "nvcc").touch(mode=0o600)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert gpu_compilers.find_nvcc() is None
    (place / "nvcc").chmod(0o700)
    assert gpu_compilers.find_nvcc() == str(place / "nvcc")


def test_nvcc_makes_a_cubin_for_one_gpu_and_a_fatbin_for_several(tmp_path: Path) -> None:
    script = tmp_path / "nvcc"
    script.write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do all="$all $1"; shift; done\necho "$all" > "$1"\n')
    script.chmod(0o755)
    one = Nvcc(str(script), ("sm_90",), tmp_path)
    assert one.suffix == ".cubin"
    assert b"-fmad=false -cubin -arch=sm_90" in one.compile("", 10)
    two = Nvcc(str(script), ("sm_80", "sm_90"), tmp_path)
    assert two.suffix == ".fatbin"
    assert b"-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90" in two.compile("", 10)


def test_a_gpu_unknown_to_the_compiler_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "nvcc"
    script.write_text("#!/bin/sh\necho sm_75; echo sm_90; echo Cuda compilation tools, release 13.0, V13\n")
    script.chmod(0o755)
    monkeypatch.setenv("BLINK_NVCC", str(script))
    with pytest.raises(UnsupportedError, match="does not compile for sm_70: expected one of sm_75, sm_90"):
        nvcc("sm_70")
