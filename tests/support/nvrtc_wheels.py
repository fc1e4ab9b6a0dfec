"""NVRTC's wheels, cached in this checkout between sessions of tests."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

KEPT = Path(__file__).resolve().parents[2] / "build" / "wheels"
#: Timeout of a download of 90 MB.
_FETCH_S = 600


def nvrtc_wheel(version: str, directory: Path) -> None:
    """Install NVRTC of that version, or the ``newest`` on the index, into ``directory``, as into site-packages."""
    name = "nvidia-cuda-nvrtc-cu12" if version.startswith("12.") else "nvidia-cuda-nvrtc"
    folder = KEPT / f"{name}-{version}"
    wheels = [] if version == "newest" else list(folder.glob("*.whl"))
    if not wheels:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--retries", "1", "download"]
        wanted = name if version == "newest" else f"{name}=={version}"
        try:
            subprocess.run(
                [*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(folder), wanted],
                check=True,
                timeout=_FETCH_S,
                capture_output=True,
                text=True,
            )
        except subprocess.CalledProcessError as error:
            pytest.skip(f"pip cannot fetch {wanted}: {error.stderr[-200:]}")
        except subprocess.TimeoutExpired as error:
            pytest.skip(f"pip cannot fetch {wanted}: {error}")
        wheels = sorted(folder.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    with zipfile.ZipFile(wheels[-1]) as wheel:
        wheel.extractall(directory, [member for member in wheel.namelist() if member.startswith("nvidia/")])
