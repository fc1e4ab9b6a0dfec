"""Which compiler makes code for this GPU, and for its driver?"""

from __future__ import annotations

from blinkccl.codegen.nvcc import Nvcc, nvcc, nvcc_version
from blinkccl.codegen.nvrtc import Nvrtc, nvrtc, nvrtc_facts
from blinkccl.errors import UnsupportedError


def gpu_compiler(architecture: str, driver: tuple[int, int] | None = None) -> Nvcc | Nvrtc:
    """NVRTC or nvcc, whichever is here and serves ``architecture``, like ``sm_90``.

    Parameters
    ----------
    driver
        The CUDA version of the driver that will load the code, which need not know the code of a compiler of a later
        major version: one that is not later is preferred. None: not known.

    Raises
    ------
    UnsupportedError
        If neither serves it: what was looked for, and how to get it.
    """
    found: list[tuple[bool, Nvcc | Nvrtc]] = []
    reasons = []
    try:
        runtime = nvrtc(architecture)
        found.append((_loads(nvrtc_facts(runtime.library).version, driver), runtime))
    except UnsupportedError as error:
        reasons.append(error.reason)
    try:
        offline = nvcc(architecture)
        found.append((_loads(nvcc_version(offline.command), driver), offline))
    except UnsupportedError as error:
        reasons.append(error.reason)
    if not found:
        raise UnsupportedError(f"no compiler for {architecture}: {'; '.join(reasons)}")
    return next((compiler for loads, compiler in found if loads), found[0][1])


def _loads(version: tuple[int, int], driver: tuple[int, int] | None) -> bool:
    return driver is None or version[0] <= driver[0]
