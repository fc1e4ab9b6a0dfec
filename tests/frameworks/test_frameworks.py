"""People's frameworks on blink, each run for real: by its own word for a backend, and as a program that says "gloo".

The environment of the frameworks is `build/frameworks`, beside the one of this project: pip installs them there from
the package index, with this torch, on the first run (some 5 GB). Blink in it is this installation, through links.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import venv
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from support.extras import needs
from support.processes import end_family

torch = pytest.importorskip("torch", reason="needs PyTorch")

PLACE = Path(__file__).parents[2] / "build" / "frameworks"
PACKAGES = (
    "accelerate==1.15.0",
    "deepspeed==0.19.8",
    "lightning==2.6.6",
    "ray[train]==2.60.0",
    "transformers==5.24.0",
)
#: vLLM without its requirements, which are CUDA's, and those that its communicator on CPUs imports.
VLLM = "vllm==0.33.0"
OF_VLLM = ("cbor2", "openai", "openai-harmony", "pyzmq")
INSTALL_S, RUN_S = 900, 400
pytestmark = [needs("torch"), pytest.mark.timeout(2 * INSTALL_S + 3 * RUN_S)]


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of the environment, in which the frameworks and blink are installed."""
    package = distribution("blink-ccl")
    lines = [Requirement(line) for line in package.requires or []]
    required = [str(line) for line in lines if line.marker is None]
    PLACE.parent.mkdir(exist_ok=True)
    with PLACE.with_suffix(".lock").open("w") as lock:  # pytest's workers make it once
        fcntl.flock(lock, fcntl.LOCK_EX)
        install([f"torch=={torch.__version__}", *PACKAGES, *OF_VLLM, *required])
        site = Path(sysconfig.get_path("purelib", "venv", {"base": str(PLACE), "platbase": str(PLACE)}))
        for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            link, target = site / top, Path(str(package.locate_file(top)))
            if not link.is_symlink() or link.readlink() != target:
                link.unlink(missing_ok=True)
                link.symlink_to(target)
    return PLACE / "bin" / "python"


def install(wanted: list[str]) -> None:
    """Make the environment, unless it has these packages; skip the test where no package index answers."""
    stamp, parts = PLACE / "installed", (wanted, ["--no-deps", "--target", str(PLACE / "vllm"), VLLM])
    if stamp.is_file() and stamp.read_text() == str(parts):
        return
    shutil.rmtree(PLACE, ignore_errors=True)
    venv.create(PLACE, with_pip=True)
    pip = [str(PLACE / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    for packages in parts:
        ended = subprocess.run(
            [*pip, "install", "--no-compile", *packages], capture_output=True, text=True, timeout=INSTALL_S
        )
        if ended.returncode and "Retrying (" in ended.stderr:
            pytest.skip(f"no package index answers here: {ended.stderr.strip()[-300:]}")
        assert ended.returncode == 0, ended.stderr
    stamp.write_text(str(parts))


def run(python: Path, program: str, word: str, **settings: str) -> dict[str, Any]:
    """Run a program with ``word`` as the backend, and return its report."""
    with tempfile.TemporaryDirectory() as home:  # a short path: Ray puts sockets there
        return ran(python, program, word, Path(home), settings)


def ran(python: Path, program: str, word: str, home: Path, settings: dict[str, str]) -> dict[str, Any]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [str(python), *([] if program.startswith("ray") else launcher)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BLINK_")}
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home), "HF_HOME": str(home), "RAY_TMPDIR": str(home)}
    offline = {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    if program.startswith("vllm"):
        places["PYTHONPATH"] = str(PLACE / "vllm")
    environment = {**inherited, **places, **offline, "OMP_NUM_THREADS": "1", "PATH": path, **settings}
    output = home / "output"
    with output.open("w") as out:
        process = subprocess.Popen(
            [*command, str(Path(__file__).with_name(f"{program}.py")), word],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=home,
        )
        try:
            process.wait(RUN_S)
        finally:
            if process.poll() is None:
                end_family(process.pid)
                process.wait()
    text = output.read_text()
    assert process.returncode == 0, f"{program} {word} {settings}: {process.returncode}\n{text[-8000:]}"
    lines = set(re.findall(r'{"calls": .*}', text))  # Ray may repeat a worker's line
    assert len(lines) == 1, text[-8000:]
    report: dict[str, Any] = json.loads(lines.pop())
    return report


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "transformers_tp",
        "transformers_trainer",
        "accelerate_training",
        "lightning_training",
        "deepspeed_training",
        "ray_train",
        "ray_collective",
        "vllm_communicator",
    ],
)
def test_a_framework_has_the_bits_of_gloo(python: Path, program: str) -> None:
    """Two ranks: blink sums them as gloo does."""
    by_gloo = run(python, program, "gloo")
    unchanged = run(python, program, "gloo", BLINK_FOR="gloo")
    by_word = run(python, program, "blink")
    assert by_gloo["calls"] == 0
    assert min(unchanged["calls"], by_word["calls"]) > 3
    assert unchanged["results"] == by_word["results"] == by_gloo["results"]


def test_the_frameworks_run_here_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text(encoding="utf-8")
    pinned = [re.sub(r"(\[.+\])?==", " ", package) for package in (*PACKAGES, VLLM) if "==" in package]
    assert [each for each in pinned if each not in page] == []
