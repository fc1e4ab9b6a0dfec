"""Our errors as torch's: what a failed call raises is both.

Programs on ``torch.distributed`` catch ``RuntimeError`` or ``DistBackendError``; ours say whose move it is.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch.distributed import DistBackendError

from blinkccl.errors import BlinkError, DeadlineError

Error = TypeVar("Error", bound=BlinkError)

_both: dict[type[BlinkError], Any] = {}


def for_torch(error: Error, call: str = "") -> Error:
    """``error`` as an object of its own class and of ``DistBackendError``, with the same attributes.

    The message is the same too; where a ``call`` ran out of time it begins as programs that look for that expect.
    """
    if isinstance(error, DistBackendError):
        return error
    kind = type(error)
    if kind not in _both:
        # Pickled as the error that it was made from: nobody finds the class by its name.
        members = {"__doc__": kind.__doc__, "__reduce__": lambda made: (for_torch, (made.plain,))}
        _both[kind] = type(kind.__name__, (kind, DistBackendError), members)
    made: Error = _both[kind].__new__(_both[kind])
    made.args = error.args
    made.__dict__.update(error.__dict__, plain=error)
    if call and isinstance(error, DeadlineError):
        made.args = (f"{call}: Timed out - {error}", *error.args[1:])
    return made
