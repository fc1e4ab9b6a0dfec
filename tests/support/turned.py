"""Plans with shares in orbits, or with every share, independent of their size."""

import json
from typing import Any
from unittest import mock

from blinkccl.trees.forest import turns
from blinkccl.trees.forest.document import dumps, to_document
from blinkccl.trees.forest.model import Forest


def turned(forest: Forest) -> dict[str, Any]:
    """Return the plan in the form of large ones: with ``turns`` if the forest is symmetric."""
    return _written(forest, -1)


def flat(forest: Forest) -> dict[str, Any]:
    """Return the plan with every share, of any size."""
    return _written(forest, 10**12)


def _written(forest: Forest, threshold: int) -> dict[str, Any]:
    with mock.patch.object(turns, "TURNED_ABOVE", threshold):
        document: dict[str, Any] = json.loads(dumps(to_document(forest)))
    return document
