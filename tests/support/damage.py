"""Changes of a JSON document, for tests of its readers."""

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def put(*keys: Any) -> Callable[[Json], None]:
    """Return a function that sets the last of ``keys`` as the value at the place that the others lead to."""
    *way, last, value = keys

    def change(document: Json) -> None:
        at: Any = document
        for key in way:
            at = at[key]
        at[last] = value

    return change
