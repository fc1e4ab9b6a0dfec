"""The bundle that a GPU day needs on a machine with one GPU, Python, torch and numpy, and no package index.

     python benchmarks/gpu_bundle.py make FOLDER             # make gpu-bundle: here, with an index
     python benchmarks/gpu_bundle.py run FOLDER --to WHERE   # there: install from it, then the quick and the whole day

The folder has a wheel of this package with its native libraries and wheels of its dependencies except numpy, for each
Python that it serves; and NVRTC's, if the whole stays under the limit. Packages of the machine are used unchanged:
``run`` makes an environment in a temporary folder that sees the packages of its Python. The exit code of ``run`` is
the greater one of the two days' (``gpu_day.py``).
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
#: Largest size of a bundle.
MIB = 1 << 20
MOST_BYTES = 64 * MIB
PYTHONS = ("3.11", "3.12", "3.13")
#: Seconds for everything: installing, and the two days, which end by themselves.
WITHIN_S, INSTALL_S = 595.0, 55.0
#: Options of each day, and its longest time in seconds, as in gpu_day.py, which cannot be imported before.
DAYS = ((("--quick",), 120.0), ((), 420.0))
#: The newest small version of the compiler; later ones have 90 MB. Torch's wheels bring their own.
NVRTC = "nvidia-cuda-nvrtc-cu12==12.6.77"
#: With torch.
THERE = ("numpy",)
INSTALL_FAILED = 2


def make(folder: Path, nvrtc: bool) -> int:
    """Fill the folder; 1 if it exceeds the limit or has no native library."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    old_enough = [f"--platform={tag}_{platform.machine()}" for tag in ("manylinux_2_28", "manylinux2014")]
    for python in PYTHONS:
        options = ["--only-binary", ":all:", "--python-version", python, *old_enough, "--dest", str(folder)]
        subprocess.run([*pip, "download", *options, *wanted], check=True)
    for name in THERE:
        for path in folder.glob(f"{name}-*.whl"):
            path.unlink()
    if nvrtc:
        subprocess.run([*pip, "download", "--no-deps", "--dest", str(folder), NVRTC], check=True)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.whl"))}
    for name, size in sizes.items():
        print(f"{size / MIB:7.2f} MiB  {name}")
    total = sum(sizes.values())
    print(f"{total / MIB:7.2f} MiB of {MOST_BYTES // MIB} in {folder}")
    return int(total > MOST_BYTES or not any("linux" in name for name in sizes if name.startswith("blink_ccl")))


def run(folder: Path, where: Path, within_s: float) -> int:
    """Install the folder's wheels and run both days; the results are in ``where``."""
    ends = time.monotonic() + within_s
    with tempfile.TemporaryDirectory(prefix="blink-gpu-day-") as place:
        python = _environment(Path(place), folder)
        if python is None:
            return INSTALL_FAILED
        environment = os.environ | {"BLINK_CACHE": f"{place}/cache"}
        os.mkdir(f"{place}/cache", 0o700)
        codes = []
        for more, usual_s in DAYS:
            left_s = ends - time.monotonic()
            command = [str(python), str(HERE / "gpu_day.py"), "--to", str(where), *more]
            limit = [] if left_s >= usual_s else ["--within", str(max(1, int(left_s - 5)))]
            codes.append(subprocess.run([*command, *limit], env=environment, check=False).returncode)
            if codes[-1] not in (0, 1):
                break
    return max(codes)


def _environment(place: Path, folder: Path) -> Path | None:
    """The Python of a new environment with the bundle, which sees the packages of this one; None: it failed."""
    venv.EnvBuilder(system_site_packages=True, with_pip=False).create(place / "venv")
    python = place / "venv" / "bin" / "python"
    query = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    inside = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    # This interpreter may be in an environment itself, whose packages the new one would not see.
    seen = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    Path(inside, "outer.pth").write_text("".join(f"{path}\n" for path in seen))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet", "install"]
    pip += ["--no-index", "--find-links", str(folder)]
    own = [str(max(folder.glob("blink_ccl-*.whl")))]
    nvrtc = [] if _finds_a_compiler() else [path.name.split("-")[0] for path in folder.glob("nvidia_cuda_nvrtc*.whl")]
    # Our package always, even over an installed version; of the others only those that are missing.
    for wanted in (["--force-reinstall", "--no-deps", *own], [*own, *nvrtc]):
        try:
            code = subprocess.run([*pip, *wanted], timeout=INSTALL_S, check=False).returncode
        except subprocess.TimeoutExpired:
            return None
        if code:
            return None
    return python


def _finds_a_compiler() -> bool:
    """True if NVRTC or nvcc is here: torch's wheels bring NVRTC."""
    wheels = ("nvidia/cuda_nvrtc/lib/libnvrtc.so.*", "nvidia/cu*/lib/libnvrtc.so.*")
    beside = any(any(Path(base or ".").glob(wheel)) for base in sys.path for wheel in wheels)
    return beside or shutil.which("nvcc") is not None or Path("/usr/local/cuda/bin/nvcc").exists()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser("make", help="fill the folder")
    making.add_argument("folder", type=Path)
    making.add_argument("--no-nvrtc", action="store_true", help="the machine has a compiler")
    running = verbs.add_parser("run", help="install from the folder, and run")
    running.add_argument("folder", type=Path)
    running.add_argument("--to", type=Path, default=HERE, metavar="WHERE", help="folder for the pages")
    running.add_argument("--within", type=float, default=WITHIN_S, metavar="SECONDS", help="of everything")
    options = parser.parse_args()
    if options.verb == "make":
        return make(options.folder, not options.no_nvrtc)
    if not any(options.folder.glob("blink_ccl-*.whl")):
        parser.error(f"{options.folder} has no wheel blink_ccl-*.whl: make gpu-bundle makes such a folder")
    return run(options.folder, options.to, options.within)


if __name__ == "__main__":
    sys.exit(main())
