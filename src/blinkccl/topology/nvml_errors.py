"""Blink's errors for NVML's return codes, complete for all codes."""

from __future__ import annotations

from blinkccl.errors import BlinkError, TopologyError, UnsupportedError

_ASK = 'run "nvidia-smi" to see the cause, and give a file or a catalog name with --topo meanwhile'
_OURS = "this is a bug in Blink; please report it, and give a file with --topo meanwhile"
_ROOT = "ask the administrator, or give a file with --topo"
_DRIVER = "update the driver or nvidia-ml-py to matching versions, and reboot after an update of the driver"
_WAIT = "try again in a moment"

#: Meaning of each code of nvml.h, and advice to the user.
NVML_ERRORS: dict[int, tuple[str, str]] = {
    1: ("NVML was not initialised", _OURS),
    2: ("an argument is invalid", _OURS),
    3: ("this GPU or driver does not support the query", _ASK),
    4: ("no permission", _ROOT),
    5: ("NVML is initialised already", _OURS),
    6: ("the object was not found", _ASK),
    7: ("a buffer is too small", _OURS),
    8: ("a power cable is not attached", _ROOT),
    9: ("the driver is not loaded", _ASK),
    10: ("the query timed out", _WAIT),
    11: ("the kernel found an interrupt problem with a GPU", _ROOT),
    12: ("the NVML library is missing", _ASK),
    13: ("this NVML has no such function", _DRIVER),
    14: ("the infoROM of a GPU is corrupted", _ROOT),
    15: ("a GPU has fallen off the bus", _ROOT),
    16: ("a GPU needs a reset", _ROOT),
    17: ("the operating system or cgroup blocks a GPU", _ROOT),
    18: ("driver and library have different versions", _DRIVER),
    19: ("a GPU is in use", _WAIT),
    20: ("too little memory", _WAIT),
    21: ("there are no data", _ASK),
    22: ("ECC is on, which vGPU does not support", _ROOT),
    23: ("too few resources other than memory", _WAIT),
    24: ("the frequency is not supported", _OURS),
    25: ("the version of a structure is unknown", _DRIVER),
    26: ("the function is deprecated", _DRIVER),
    27: ("the system is not ready", _WAIT),
    28: ("no GPU was found", _ASK),
    29: ("the GPU is in the wrong state", _ROOT),
    30: ("the reset type is not supported", _OURS),
    999: ("an internal error of the driver", _ASK),
}
NOT_SUPPORTED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_NOT_FOUND = 3, 9, 12, 13, 28
#: Codes of a machine without NVIDIA GPUs, in contrast to one whose GPUs fail.
NO_GPUS = (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, GPU_NOT_FOUND)
#: Codes for a query that this GPU, driver or virtual machine does not answer.
NOT_TOLD = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)


def nvml_error(code: int, doing: str) -> BlinkError:
    """The error for NVML's return ``code`` while ``doing`` something; unknown codes are covered."""
    meaning, action = NVML_ERRORS.get(code, ("unknown to this version of Blink", _DRIVER))
    text = f"NVML, {doing}: {meaning} (code {code}); {action}"
    return UnsupportedError(text) if code in NOT_TOLD else TopologyError(text)
