"""Programs load NCCL in different ways, and Blink finds it; programs without NCCL are not affected."""

import sys
from pathlib import Path

import pytest
from preloaded import Built, Preloaded

#: Python opens torch with RTLD_LOCAL, so NCCL's name is not in the global scope.
LIKE_TORCH = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_LOCAL)
words = [word.encode() for word in sys.argv[1:]]
sys.exit(library.scene_main(len(words), (ctypes.c_char_p * len(words))(*words)))
"""


def test_ranks_as_torch_has_them(preloaded: Preloaded, files: Built) -> None:
    start = [sys.executable, "-c", LIKE_TORCH, files.doubles.ranks_library]
    outcome = preloaded.scene("many_calls", calls=3, start=start).right()
    assert outcome.calls("blink") == {"allreduce": 9}
    assert outcome.reached_nccl() == {}


@pytest.mark.parametrize("by", ["BLINK_NCCL_LIB", "torch"])
def test_bindings_that_open_the_library_by_its_path(
    preloaded: Preloaded, files: Built, tmp_path: Path, by: str
) -> None:
    """The effect of VLLM_NCCL_SO_PATH=libblink.so: nothing is preloaded, and handles are the library's own."""
    client, nccl = Path(__file__).with_name("opened_client.py"), files.doubles.nccl
    commands = [
        [
            sys.executable,
            client,
            files.library,
            "2",
            str(rank),
            tmp_path / "id",
            "3",
            *([nccl] if by == "torch" else []),
        ]
        for rank in range(2)
    ]
    variables = {"BLINK_NCCL_LIB": nccl} if by == "BLINK_NCCL_LIB" else {}
    outcome = preloaded.run(commands, LD_PRELOAD=None, BLINK_TOPO="clique:2", **variables).right()
    assert outcome.calls("blink") == {"allreduce": 6}
    assert outcome.reached_nccl() == {}


FORKED = "import os; child = os.fork(); child or os._exit(3); os.waitpid(child, 0)"
MAPS = "print([line.split()[-1] for line in open('/proc/self/maps') if '.so' in line])"


@pytest.mark.parametrize(
    "command",
    [
        ["/bin/true"],
        ["/bin/sh", "-c", "/bin/true & wait; exit 0"],
        [sys.executable, "-c", FORKED],
        [sys.executable, "-c", MAPS],
    ],
    ids=["true", "shell", "forks", "maps"],
)
def test_programs_without_gpus_notice_nothing(preloaded: Preloaded, tmp_path: Path, command: list[str]) -> None:
    journal = tmp_path / "driver"
    outcome = preloaded.run([command], BLINK_DOUBLE_JOURNAL=journal, BLINK_DEBUG="TRACE", NCCL_DEBUG="TRACE")
    (ended,) = outcome.ended
    assert (ended.code, ended.err, outcome.left) == (0, "", [])
    assert (outcome.usage, outcome.journal) == ([], [])
    assert not journal.exists()
    if "maps" in str(command):
        assert "libblink.so" in ended.out
        assert "libcuda" not in ended.out
        assert "libnccl" not in ended.out
    else:
        assert ended.out == ""
