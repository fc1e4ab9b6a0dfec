"""Jobs for tests, ended at the end of the test in any case."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import several_hosts
from job import Job, Ran, Start

from blinkccl.engines import native_library
from blinkccl.errors import UnsupportedError


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a job: ``start(size, function, *arguments, deadline_s=…, on=…)``."""
    try:
        native_library.load()
    except UnsupportedError as reason:
        pytest.skip(str(reason))
    jobs: list[Job] = []

    def begin(size: int, function: Callable[..., Any], *arguments: Any, **options: Any) -> Job:
        jobs.append(Job(tmp_path / f"job{len(jobs)}", size, function, *arguments, **options))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.end()


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Return the names of two network namespaces at ``several_hosts.NETWORK``, .1 and .2; removed at the end."""
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("needs root, ip and tc")
    with ExitStack() as undo:
        try:
            names = undo.enter_context(several_hosts.hosts(2, 0))
        except SystemExit as reason:
            pytest.skip(f"no network namespace can be made here: {reason}")
        yield names


@pytest.fixture
def ran(start: Start) -> Ran:
    """Return a function that runs a job to its end and returns its ranks' results."""

    def run(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return start(size, function, *arguments).values()

    return run
