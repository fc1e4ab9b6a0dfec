"""What all tests share: the option that renews golden files, and the command line run in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from blinkccl.cli import main


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: a merge does not wait for it; BLINK_ALL_TESTS=1 runs it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("BLINK_ALL_TESTS"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="BLINK_ALL_TESTS=1 runs it"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True, scope="session")
def _own_plan_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Plans that another version of the code has left in the user's cache must not be what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLINK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


Blink = Callable[..., Ended]


@pytest.fixture
def blink(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Blink:
    """Runs ``blink`` with these arguments, through the same ``main`` as the console script."""

    def run(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["blink", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0 if code is None else 1, out, err)

    return run
