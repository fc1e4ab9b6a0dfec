"""Each call runs in the right library, Blink or NCCL; and errors if NCCL lacks a function or is missing."""

import subprocess
import sys
from pathlib import Path

import pytest
from preloaded import DOUBLES, HERE, Built, Ended, Preloaded
from variants import OPTIONS

SYMBOLS = DOUBLES / "nccl" / "symbols-2.32.3.txt"


def test_unusual_calls(preloaded: Preloaded, files: Built) -> None:
    """The library is opened by its path, as vLLM does if it is given libblink.so instead of libnccl.so.2."""
    command = [sys.executable, HERE / "nccl_roads.py", files.library]
    journal = {"BLINK_DOUBLE_JOURNAL": preloaded.directory / "driver", "NCCL_SYMBOLS": SYMBOLS}
    variables = {"LD_PRELOAD": None, "BLINK_NCCL_LIB": files.doubles.nccl, "BLINK_TOPO": "clique:2"}
    # The program waits for a reused handle, so a sanitizer must release freed memory, too.
    variables["ASAN_OPTIONS"] = f"{OPTIONS['ASAN_OPTIONS']} quarantine_size_mb=0 thread_local_quarantine_size_kb=0"
    outcome = preloaded.run([command], **variables, **journal)
    (ended,) = outcome.ended
    assert [line for line in ended.said if not line["ok"]] == []
    assert ended.code == 0, ended.err[-2000:]
    assert len(ended.said) > 50


#: Calls NCCL's functions through ctypes and prints the results.
ASK = """
import ctypes as c, sys
nccl = c.CDLL(sys.argv[1])
number, comm = c.c_int(-1), c.c_void_p()
codes = [nccl.ncclGetVersion(c.byref(number)), nccl.ncclCommInitAll(c.byref(comm), 2, None)]
codes += [nccl.ncclAllReduce(None, None, c.c_size_t(1), 7, 0, None, None), nccl.ncclGroupStart(), nccl.ncclGroupEnd()]
codes += [nccl.ncclMemFree(None), nccl.ncclCommDestroy(None), nccl.ncclCommWindowDeregister(None, None)]
codes += [nccl.ncclCommWindowDeregister(None, None), nccl.ncclLLA2ACalcSlots(1, 1)]
nccl.ncclGetErrorString.restype = nccl.ncclGetLastError.restype = c.c_char_p
print(codes, number.value, min(len(nccl.ncclGetErrorString(code)) for code in range(-1, 12)))
print(nccl.ncclGetLastError(None).decode())
"""


def ask(preloaded: Preloaded, files: Built, nccl: object) -> Ended:
    empty = preloaded.directory / "empty"
    empty.mkdir(exist_ok=True)
    variables = {"LD_PRELOAD": None, "LD_LIBRARY_PATH": empty, "BLINK_NCCL_LIB": nccl}
    (ended,) = preloaded.run([[sys.executable, "-c", ASK, files.library]], **variables).ended
    assert ended.code == 0, ended.err
    return ended


@pytest.mark.parametrize(
    ("nccl", "why"),
    [
        (None, "no libnccl.so.2 is loaded; BLINK_NCCL_LIB is not set; no library after libblink.so"),
        ("/nonexistent/libnccl.so.2", "BLINK_NCCL_LIB cannot be opened: /nonexistent/libnccl.so.2"),
        ("libc.so.6", "BLINK_NCCL_LIB=libc.so.6 is Blink or has no ncclGetVersion"),
        ("libblink.so", "is Blink or has no ncclGetVersion"),
    ],
)
def test_without_nccl_every_call_fails_with_one_reason(
    preloaded: Preloaded, files: Built, nccl: str | None, why: str
) -> None:
    ended = ask(preloaded, files, files.library if nccl == "libblink.so" else nccl)
    codes, last = ended.out.splitlines()
    assert codes == "[2, 2, 2, 2, 2, 2, 2, 2, 2, 0] -1 8"  # ncclSystemError, and no text of less than 8 characters
    assert "there is no NCCL library" in last
    (line,) = ended.err.splitlines()
    assert why in line
    assert "Set BLINK_NCCL_LIB to the file" in line


def test_function_that_this_nccl_lacks(preloaded: Preloaded, files: Built, tmp_path: Path) -> None:
    """Its call is an error, which is reported once."""
    source, old = tmp_path / "old.c", tmp_path / "libnccl_old.so"
    source.write_text("int ncclGetVersion(int *version) { *version = 21000; return 0; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", old, source], check=True)
    ended = ask(preloaded, files, old)
    assert ended.out.startswith("[0, 5, 5, 5, 5, 5, 5, 5, 5, 0] 21000 ")
    lines = [line for line in ended.blink if "ncclCommWindowDeregister" in line]
    assert lines == ["WARN this NCCL (version code 21000) has no ncclCommWindowDeregister: the call returns an error"]


def test_nccl_newer_than_the_newest_known(preloaded: Preloaded) -> None:
    """Plans use the data of the newest known version, and calls run in the usual library.

    In one stream: across streams a program must order NCCL's calls and Blink's (docs/gpu.md).
    """
    job = {"cases": "sizes", "sizes": "1,300000", "BLINK_ALGO": None}
    newer = preloaded.client("process", 4, **job, BLINK_DOUBLE_NCCL_VERSION=29900).right()
    known = preloaded.client("process", 4, **job).right()
    assert (newer.calls("blink"), newer.calls("nccl")) == (known.calls("blink"), known.calls("nccl"))
    assert newer.calls("blink").total() > 0 < newer.calls("nccl").total()
    assert newer.agreed()
