"""The published distributions: the sdist of this tree, its wheel, and an environment with that wheel alone.

The objects in the wheel are copied from `make native`, which compiled the same sources. With BLINK_ALL_TESTS=1 they are
compiled from the sdist, in one or two minutes, and `make wheels` compiles the wheels for other machines. The wheel for
another kind of CPU runs under QEMU, in Debian's Python for that CPU.
"""

import fcntl
import filecmp
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from blinkccl.cli.exits import HARDWARE
from support.examples import ALL_TESTS
from support.extras import needs
from support.processes import readelf

#: Timeout in seconds to compile everything.
DEADLINE_S = 1500 if ALL_TESTS else 250
pytestmark = pytest.mark.timeout(DEADLINE_S + 50)

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
LIBRARIES = {
    *("libblink.so", "libblink_device.so", "libblink_host.so", "libblink_packing.so", "libblink_simulate.so"),
    *("libblink_mpi.so", "libblink_mpi4.so", "libblink_mpi_fortran.so"),
}
#: Libraries that every process has; another library may be missing on a machine, or have another version.
PLAIN_C = re.compile(r"lib(c|m|pthread|dl|rt)\.so\.\d+|ld-linux[-.\w]*\.so\.\d+")
#: Commands of an environment with the wheel alone.
COMMANDS = (
    "blink --version",
    "blink plan allreduce --topo dgx-1v --gpus 1,4,5,6 -o plan.json",
    "blink check plan.json",
    "blink show plan.json -o plan.html",
    "blink bench allreduce -g 2 -b 64K -e 64K -n 5",
)
#: The tests of reductions, without the settings and fixtures of the repository.
KERNELS = (
    "python -m pytest -q --noconftest -c /dev/null -p no:cacheprovider -W ignore "
    f"{ROOT}/tests/unit/native/test_kernels.py"
)
#: Machines of `make wheels`, and Debian's names for them.
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
HERE = platform.machine()
#: Wheels under test: of this machine's compiler, and of `make wheels`.
WHEELS = ["wheel", *(pytest.param(machine, marks=pytest.mark.slow) for machine in MACHINES)]
#: Python for another CPU, as the program that an environment links: QEMU runs it.
EMULATED = """#!/bin/sh
exec {qemu} -L {root} -0 "$0" {root}/usr/bin/python3 "$@"
"""
#: Compiler launcher that copies an existing object instead of compiling it.
LAUNCHER = """#!/bin/sh
for word; do
  if [ "$before" = -o ] && [ -f "{built}/$word" ]; then exec {copy} "{built}/$word" "$word"; fi
  before=$word
done
exec "$@"
"""
#: Stand-in for ziglang's zig: this machine's compiler, by its path, without the options that only zig has.
ZIG = """#!/bin/sh
PATH={path}
[ "$1" = c++ ] || exit 9
shift
for word; do
  shift
  case $word in -mcpu=baseline | -target | *-linux-gnu.2.28) ;; *) set -- "$@" "$word" ;; esac
done
exec {compiler} "$@"
"""


def build(hook: str, source: Path, into: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a hook of the build backend like pip, in a process whose PATH has cmake and ninja, but no compiler."""
    if importlib.util.find_spec("scikit_build_core") is None:
        pytest.skip("scikit-build-core is not installed (extra dev)")
    tools = into / "tools"
    tools.mkdir()
    for tool in ("cmake", "ninja"):
        program = shutil.which(tool, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
        if program is None:
            pytest.skip(f"{tool} is not installed (extra dev)")
        (tools / tool).symlink_to(program)
    inherited = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX", "CMAKE_GENERATOR")}
    more = environment.pop("PATH", None)
    code = f"import sys; sys.path.insert(0, 'native/backend'); import blink_build; print(blink_build.{hook})"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=source,
        env=inherited | {"PATH": f"{tools}:{more}" if more else str(tools)} | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def the_file(built: subprocess.CompletedProcess[str], into: Path, ending: str) -> Path:
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = into.glob(f"*{ending}")
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of this tree, unpacked."""
    into = tmp_path_factory.mktemp("sdist")
    archive = the_file(build(f"build_sdist({str(into)!r})", ROOT, into), into, ".tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    return into / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of that sdist."""
    if sys.platform != "linux" or COMPILER is None:
        pytest.skip("native libraries need Linux and a C++ compiler")
    into = tmp_path_factory.mktemp("wheel")
    more = {"PATH": os.environ["PATH"], "CXX": COMPILER} | existing_objects(into)
    return the_file(build(f"build_wheel({str(into)!r})", source, into, **more), into, ".whl")


@pytest.fixture(scope="module")
def wheels(session_cache: Path) -> Callable[[str], Path]:
    """Return a function from a name in MACHINES to the wheel of `make wheels`, which the session's workers share."""
    into = session_cache / "wheels"
    into.mkdir(exist_ok=True)
    command = ["make", "-C", str(ROOT), "wheels", f"VENV={sys.prefix}", f"DIST={into}"]
    with (into / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if len(list(into.glob("*.whl"))) < len(MACHINES):
            made = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
            if "No matching distribution" in made.stderr:
                pytest.skip("needs ziglang from a package index")
            assert made.returncode == 0, made.stdout + made.stderr
    return lambda machine: next(into.glob(f"*_{machine}.whl"))


@pytest.fixture
def each(request: pytest.FixtureRequest) -> Path:
    """The wheel of the parameter, one of WHEELS."""
    name = request.param
    return request.getfixturevalue("wheel") if name == "wheel" else request.getfixturevalue("wheels")(name)


def existing_objects(into: Path) -> dict[str, str]:
    if ALL_TESTS:
        return {}
    launcher = into / "launcher"
    launcher.write_text(LAUNCHER.format(copy=shutil.which("cp"), built=ROOT / "build" / "editable"))
    launcher.chmod(0o700)
    return {"CMAKE_CXX_COMPILER_LAUNCHER": str(launcher)}


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def files(folder: Path) -> set[str]:
    """The files below ``folder``, relative to it, without those that Python and git leave there."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if not re.search(r"(^|/)(__pycache__|\.[^/]*|[^/]*\.egg-info)(/|$)", name)}


def add_needs(package: Distribution, known: dict[str, Distribution]) -> None:
    """Add the installed requirements of a package without extras to ``known``, and theirs in turn."""
    for line in package.requires or []:
        required = Requirement(line)
        if required.name not in known and (required.marker is None or required.marker.evaluate({"extra": ""})):
            known[required.name] = distribution(required.name)
            add_needs(known[required.name], known)


def link_needs(wheel: Path, more: str, at: Path) -> None:
    """Create an environment with the requirements of ``wheel`` and the package ``more``, linked from this one."""
    venv.create(at, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(at), "platbase": str(at)}))
    described = zipfile.Path(wheel, next(name for name in contents(wheel) if name.endswith("/METADATA"))).parent
    known = {more: distribution(more)}
    for package in (PathDistribution(described), known[more]):
        add_needs(package, known)
    for package in known.values():
        for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(package.locate_file(top)))


def emulate(machine: str, at: Path) -> None:
    """Create an environment with Debian's Python for another CPU, in a folder of its own; QEMU runs it."""
    qemu = shutil.which(f"qemu-{machine}-static")
    if qemu is None or shutil.which("apt-get") is None:
        pytest.skip("needs QEMU and Debian's packages (apt install qemu-user-static)")
    root, apt = at.with_name("root"), at.with_name("apt")
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    settings = {
        "APT::Architecture": MACHINES[machine],
        "APT::Architectures::": MACHINES[machine],
        "APT::Sandbox::User": "root",
        "Dir::State": apt / "state",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": apt / "cache",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    for verb in ("update", "install -y --download-only --no-install-recommends python3 libstdc++6"):
        ended = subprocess.run(["apt-get", "-qq", *options, *verb.split()], capture_output=True, text=True, timeout=300)
        if ended.returncode != 0:
            pytest.skip(f"needs Debian's packages for {machine}: {ended.stderr}")
    for package in (apt / "cache" / "archives").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True, timeout=60)
    python = root / "usr" / "bin" / "python"
    python.write_text(EMULATED.format(qemu=qemu, root=root))
    python.chmod(0o700)
    subprocess.run([python, "-m", "venv", "--without-pip", at], check=True, timeout=100)


def install(wheel: Path, at: Path, more: str = "pytest") -> Path:
    """Create an environment with ``wheel`` and the package ``more``; its bin directory."""
    words = [wheel, "--no-index"]
    if wheel.stem.endswith(HERE):
        link_needs(wheel, more, at)
    else:
        emulate(wheel.stem.partition("_2_28_")[2], at)
        words = [wheel, more]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(at / "bin" / "python")]
    ended = subprocess.run([*pip, "install", "--no-compile", *words], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return at / "bin"


def run(command: str, programs: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in a shell whose PATH has only the environment."""
    folder.mkdir(exist_ok=True)
    environment = {"PATH": str(programs), "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        ["/bin/sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )


def test_changelog_and_citation_have_this_version() -> None:
    version = PROJECT["project"]["version"]
    newest = re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    cited = (ROOT / "CITATION.cff").read_text()
    assert newest[1] == version
    assert f"\nversion: {version}\ndate-released: {newest[2]}\n" in cited


def test_the_sdist_has_the_repository(source: Path) -> None:
    folders = ("src", "native", "tests", "docs", "benchmarks", "examples", "reproduction")
    repository = {f"{folder}/{name}" for folder in folders for name in files(ROOT / folder)}
    unpacked = files(source)
    assert {name for name in unpacked if "/" in name} == repository
    assert {"pyproject.toml", "Makefile", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO"} <= unpacked
    assert filecmp.cmpfiles(ROOT, source, repository, shallow=False)[1:] == ([], [])
    assert [path.name for path in source.iterdir() if path.name.startswith(".")] == [".gitignore"]


@pytest.mark.parametrize("each", WHEELS, indirect=True)
def test_the_wheel_has_the_package_and_its_libraries(each: Path) -> None:
    names = set(contents(each))
    native = {name for name in names if name.startswith("blinkccl/_native/")}
    notes = {name for name in names if re.match(r"blink_ccl-[^/]+\.dist-info/", name)}
    assert names - native - notes == files(ROOT / "src")
    assert {Path(name).name for name in native if name.endswith(".so")} == LIBRARIES
    headers = {f"blinkccl/_native/device/blink/{path.name}" for path in (ROOT / "native/device/blink").iterdir()}
    assert headers == {name for name in native if "/device/" in name}
    assert {name.partition("/")[2] for name in notes} == {
        *("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }


def test_headers_of_code_that_users_compile_are_in_the_wheel(wheel: Path) -> None:
    texts = {name: text.decode() for name, text in contents(wheel).items() if re.search(r"\.(c|h|cpp|inc)$", name)}
    folders = ["blinkccl/_native/mpi", "blinkccl/_native/device", "blinkccl/native/include"]
    for name, text in texts.items():
        # Only tests use emulated blocks.
        for header in re.findall(r'^ *# *include "(?!emulate/)(.+)"', text, re.MULTILINE):
            near = [str(Path(name).parent), *folders]
            assert any(f"{folder}/{header}" in texts for folder in near), f"{name} includes {header}"
    assert "blinkccl/_native/mpi/binding.c" in texts


@pytest.mark.parametrize("each", WHEELS, indirect=True)
def test_one_wheel_serves_every_python(each: Path, wheel: Path) -> None:
    local = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    kind = local if each == wheel else f"manylinux_2_28_{each.stem.partition('_2_28_')[2]}"
    assert each.name == f"blink_ccl-{PROJECT['project']['version']}-py3-none-{kind}.whl"
    (text,) = (text.decode() for name, text in contents(each).items() if name.endswith(".dist-info/WHEEL"))
    assert re.findall("^Tag: (.+)$", text, re.MULTILINE) == [f"py3-none-{kind}"]
    assert "\nRoot-Is-Purelib: false\n" in text


@pytest.mark.parametrize("each", WHEELS, indirect=True)
def test_libraries_in_the_wheel_do_not_depend_on_this_machine(each: Path, source: Path, tmp_path: Path) -> None:
    for name, content in contents(each).items():
        for path in (f"{ROOT}/native", f"{ROOT}/src", f"{ROOT}/build", str(source), str(each.parent)):
            assert path.encode() not in content, name
        if name.endswith(".so"):
            library = tmp_path / Path(name).name
            library.write_bytes(content)
            dynamic = readelf("-d", library)
            assert [one for one in re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic) if not PLAIN_C.fullmatch(one)] == []
            assert not re.search(r"\((RPATH|RUNPATH|TEXTREL)\)", dynamic), name
            versions = re.findall(r"\bGLIBC_2\.(\d+)", readelf("-V", library))
            assert "manylinux_2_28" not in each.name or max(map(int, versions), default=0) <= 28, name
    rows = [row.split() for row in readelf("--dyn-syms", tmp_path / "libblink_host.so").splitlines()]
    exported = {row[7] for row in rows if len(row) > 7 and row[6].isdigit()}
    assert "blink_host_version" in exported
    assert {name for name in exported if not name.startswith("blink_")} == set()


@pytest.mark.parametrize("each", WHEELS, indirect=True)
def test_the_wheel_works_in_an_environment_of_its_own(each: Path, wheel: Path, tmp_path: Path) -> None:
    programs = install(each, tmp_path / "environment")
    for command in (*([] if each == wheel else [KERNELS]), *COMMANDS):
        ended = run(command, programs, tmp_path / "empty")
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    assert "# Out of bounds values : 0 OK" in ended.stdout
    code = """if True:
        from importlib.metadata import entry_points
        from blinkccl.engines import native_library
        for group in ("torch.backends", "torch.distributed.backends"):
            (point,) = entry_points(group=group)
            print(group, point.name, __import__("importlib").util.find_spec(point.module) is not None)
        print(native_library.load().blink_host_version().decode(), native_library.find())"""
    ended = run(f"python -c '{code}'", programs, tmp_path / "empty")
    *points, of_library = ended.stdout.splitlines()
    assert points == ["torch.backends blink True", "torch.distributed.backends blink True"], ended.stderr
    version, _, path = of_library.partition(" ")
    assert version == PROJECT["project"]["version"]
    assert Path(path).is_relative_to(tmp_path)


@needs("torch")
@pytest.mark.slow
def test_a_torch_job_runs_on_the_wheel_for_other_machines(wheels: Callable[[str], Path], tmp_path: Path) -> None:
    programs = install(wheels(HERE), tmp_path / "environment", "torch")
    job = f"python -m torch.distributed.run --standalone --nproc-per-node 2 {ROOT}/examples/train.py --steps 8"
    ended = run(job, programs, tmp_path / "empty")
    assert (ended.returncode, "\nblink: " in ended.stdout) == (0, True), ended.stdout + ended.stderr


@pytest.mark.parametrize("kind", ["wheel", "editable"])
@pytest.mark.parametrize(
    ("compiler", "machine", "asks"), [("", "", True), ("g++", "", False), ("g++", "aarch64", True)]
)
def test_the_build_asks_for_zig_without_a_compiler_and_for_other_machines(
    kind: str, compiler: str, machine: str, asks: bool, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    if compiler:
        (tmp_path / "bin" / compiler).write_text("")
        (tmp_path / "bin" / compiler).chmod(0o700)
    environment = {"PATH": str(tmp_path / "bin"), "BLINK_MANYLINUX": machine}
    built = build(f"get_requires_for_build_{kind}()", ROOT, tmp_path, **environment)
    assert (built.returncode, "'ziglang==" in built.stdout) == (0, asks), built.stdout + built.stderr


@pytest.mark.parametrize("machine", ["", HERE])
def test_zig_compiles_the_same_libraries(machine: str, source: Path, wheel: Path, tmp_path: Path) -> None:
    zig = tmp_path / "packages" / "ziglang" / "zig"
    zig.parent.mkdir(parents=True)
    zig.with_name("__init__.py").write_text("")
    zig.write_text(ZIG.format(path=os.environ["PATH"], compiler=COMPILER))
    zig.chmod(0o700)
    more = existing_objects(tmp_path) | {"PYTHONPATH": str(zig.parents[1]), "BLINK_MANYLINUX": machine}
    first = f"{str(tmp_path)!r} + '/' + blink_build.prepare_metadata_for_build_wheel({str(tmp_path)!r})"
    built = build(f"build_wheel({str(tmp_path)!r}, None, {first})", source, tmp_path, **more)
    assert "compiles everything" in built.stdout
    made = the_file(built, tmp_path, f"{'2_28_' if machine else 'linux_'}{HERE}.whl")
    assert set(contents(made)) == set(contents(wheel))


def test_a_library_is_never_left_out(source: Path, tmp_path: Path) -> None:
    built = build(f"build_wheel({str(tmp_path)!r})", source, tmp_path)
    assert built.returncode != 0
    assert "No C++ compiler: none of c++, g++ and clang++ is on PATH (Debian: apt install g++)" in built.stderr
    assert list(tmp_path.glob("*.whl")) == []


def test_a_gpu_day_is_installed_from_its_bundle(wheel: Path, tmp_path: Path) -> None:
    """All requirements of the package are installed, so the day ends only at the missing GPU."""
    bundle, pages = tmp_path / "bundle", tmp_path / "pages"
    bundle.mkdir()
    shutil.copy(wheel, bundle)
    environment = os.environ | {"BLINK_CUDA_LIB": "/nothing/libcuda.so.1"}
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_bundle.py"), "run", str(bundle), "--to", str(pages)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert ended.returncode == HARDWARE, ended.stderr
    assert "needs an NVIDIA GPU: no NVIDIA driver: /nothing/libcuda.so.1" in ended.stderr
    assert list(pages.iterdir()) == []
