"""Fixtures and options of all tests: a cache of plans and compiled code per session, doubles, and the command line."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from blinkccl.cli import main
from doubles.build import Doubles, build, have_compiler
from support.examples import ALL_TESTS, load_profile
from support.extras import MARKERS, skip_what_needs_more

load_profile()


def pytest_configure(config: pytest.Config) -> None:
    for line in ("slow: skipped by make test; BLINK_ALL_TESTS=1 runs it", *MARKERS):
        config.addinivalue_line("markers", line)


def pytest_collection_finish() -> None:
    """Exclude the thousands of collected tests from garbage collection, and run it less often.

    With the default threshold, collections through the objects of plans take a sixteenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_what_needs_more(items)
    if ALL_TESTS:
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="BLINK_ALL_TESTS=1 runs it"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    def assert_refused(self, message: str) -> None:
        """Assert exit code 2, empty standard output, and ``message`` on standard error."""
        assert (self.code, self.out) == (2, "")
        assert message in self.err


@pytest.fixture(autouse=True, scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory BLINK_CACHE, shared by all workers of a session and new, as old ones are of other versions."""
    own = tmp_path_factory.getbasetemp()
    directory = (own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own) / "cache"
    directory.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLINK_CACHE", str(directory))
        yield directory


@pytest.fixture(scope="session")
def doubles() -> Doubles:
    """The doubles of CUDA's driver, NCCL and nvcc, built once per content."""
    if not have_compiler():
        pytest.skip("the test doubles need Linux, gcc and g++; none is on PATH")
    return build()


@pytest.fixture(autouse=True)
def no_group_is_left() -> Iterator[None]:
    """Fail a test that leaves this process in a group, because later tests of `blink dump` would find that group."""
    yield
    left = [number for number in os.listdir(FILES) if is_a_groups(number)] if os.path.isdir(FILES) else []
    assert not left, f"{len(left)} descriptors of groups are still open: close the communicator"


FILES = "/proc/self/fd"


def is_a_groups(number: str) -> bool:
    with suppress(FileNotFoundError):  # It may have been closed since.
        return os.readlink(f"{FILES}/{number}").startswith("/memfd:blink-segment")
    return False


Blink = Callable[..., Ended]


@pytest.fixture
def blink(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Blink:
    """A function that runs ``blink`` with its arguments, through the ``main`` of the console script."""

    return lambda *arguments: _typed(main, arguments, monkeypatch, capsys)


@pytest.fixture
def reproduction(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Blink:
    """A function that runs ``python -m reproduction`` with its arguments."""
    from reproduction.__main__ import main as claims

    return lambda *arguments: _typed(claims, arguments, monkeypatch, capsys)


def _typed(
    main: Callable[[], None],
    arguments: tuple[str | Path, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Ended:
    monkeypatch.setattr(sys, "argv", ["blink", *map(str, arguments)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    code = ended.value.code
    return Ended(code if isinstance(code, int) else 0 if code is None else 1, out, err)
