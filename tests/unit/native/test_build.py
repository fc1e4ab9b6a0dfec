"""What gets built is what the package promises: the library, a build without a compiler, the source archive."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from blinkccl.engines import native_library

ROOT = Path(__file__).parents[3]
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
#: Every process has these already; each other library is one that a machine may not have, or have another of.
PLAIN_C = re.compile(r"lib(c|m|pthread|dl|rt)\.so\.\d+|ld-linux[-.\w]*\.so\.\d+")


@pytest.fixture(scope="module")
def library() -> Path:
    path = native_library.find()
    if path is None:
        if COMPILER and sys.platform == "linux":
            pytest.fail(f"{COMPILER} is here but the native library is not installed: run `make native`")
        pytest.skip("no C++ compiler built a native library")
    return path


def readelf(option: str, path: Path) -> str:
    tool = shutil.which("readelf")
    if tool is None:
        pytest.skip("readelf (binutils) is not installed")
    return subprocess.run([tool, "-W", option, path], check=True, capture_output=True, text=True, timeout=60).stdout


def test_the_library_is_of_this_version(library: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert native_library.load().blink_host_version().decode() == project["version"]
    assert distribution("blink-ccl").version == project["version"]


def test_the_papers_beside_the_package_are_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    cited = (ROOT / "CITATION.cff").read_text()
    assert newest[1] == version
    assert f"\nversion: {version}\ndate-released: {newest[2]}\n" in cited


def test_only_our_names_leave_the_library(library: Path) -> None:
    rows = [row.split() for row in readelf("--dyn-syms", library).splitlines()]
    exported = {row[7] for row in rows if len(row) > 7 and row[6].isdigit()}
    assert "blink_host_version" in exported
    assert {name for name in exported if not name.startswith("blink_")} == set()


def test_the_library_needs_plain_c_only(library: Path) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", library))
    assert needed
    assert [name for name in needed if not PLAIN_C.fullmatch(name)] == []


def test_one_wheel_serves_every_python(library: Path) -> None:
    if os.environ.get(native_library.OVERRIDE):
        pytest.skip(f"{native_library.OVERRIDE} names a library that no wheel brought")
    tags = re.findall(r"^Tag: (.+)$", distribution("blink-ccl").read_text("WHEEL") or "", re.MULTILINE)
    assert tags
    assert all(tag.startswith("py3-none-linux") for tag in tags)


def build(what: str, into: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the build backend as pip does, in a process whose PATH has cmake and ninja and no compiler."""
    if importlib.util.find_spec("scikit_build_core") is None:
        pytest.skip("scikit-build-core is not installed (extra dev)")
    tools = into / "tools"
    tools.mkdir()
    for tool in ("cmake", "ninja"):
        found = shutil.which(tool, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
        if found is None:
            pytest.skip(f"{tool} is not installed (extra dev)")
        (tools / tool).symlink_to(found)
    kept = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX", "BLINK_REQUIRE_NATIVE", "CMAKE_GENERATOR")}
    return subprocess.run(
        [sys.executable, "-c", f"from scikit_build_core.build import build_{what} as build; build({str(into)!r})"],
        cwd=ROOT,
        env=kept | {"PATH": str(tools)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_without_a_compiler_the_package_is_pure_python(tmp_path: Path) -> None:
    built = build("wheel", tmp_path)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "WITHOUT its native library" in built.stdout
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"blinkccl/__init__.py", "blinkccl/py.typed", "blinkccl/native/include/blink/types.h"} <= set(names)
    assert [name for name in names if name.endswith(".so")] == []


def test_a_library_that_must_be_built_is_not_left_out(tmp_path: Path) -> None:
    built = build("wheel", tmp_path, BLINK_REQUIRE_NATIVE="1")
    assert built.returncode != 0
    assert "CMAKE_CXX_COMPILER" in built.stdout + built.stderr
    assert list(tmp_path.glob("*.whl")) == []


def test_the_source_archive_has_the_native_sources_and_the_tests(tmp_path: Path) -> None:
    built = build("sdist", tmp_path)
    assert built.returncode == 0, built.stdout + built.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    native = {str(path.relative_to(ROOT)) for path in (ROOT / "native").rglob("*") if path.is_file()}
    assert native | {"Makefile", "tests/unit/native/test_build.py"} <= names
    assert [name for name in names if name.startswith((".ci", ".venv", "build"))] == []
