"""Connections of conformance tests, which end with each file."""

from collections.abc import Iterator

import pytest

from support.between_hosts import EVERY_RANK_APART


@pytest.fixture(autouse=True, scope="module")
def closed() -> Iterator[None]:
    yield
    EVERY_RANK_APART.close()
