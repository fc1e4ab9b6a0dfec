"""Jobs for tests, ended at the end of the test in any case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from job import PATIENT_S, Job, Ran, Start

from blinkccl.engines import native_library
from blinkccl.errors import UnsupportedError


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a job: ``start(size, function, *arguments, deadline_s=…)``."""
    try:
        native_library.load()
    except UnsupportedError as reason:
        pytest.skip(str(reason))
    jobs: list[Job] = []

    def begin(size: int, function: Callable[..., Any], *arguments: Any, deadline_s: float = PATIENT_S) -> Job:
        jobs.append(Job(tmp_path / f"job{len(jobs)}", size, function, *arguments, deadline_s=deadline_s))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.end()


@pytest.fixture
def ran(start: Start) -> Ran:
    """Return a function that runs a job to its end and returns its ranks' results."""

    def run(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return start(size, function, *arguments).values()

    return run
