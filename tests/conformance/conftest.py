"""Connections of conformance tests, which end with each file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.between_hosts import EVERY_RANK_APART


@pytest.fixture(autouse=True, scope="module")
def closed() -> Iterator[None]:
    yield
    EVERY_RANK_APART.close()
