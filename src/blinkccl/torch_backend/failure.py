"""Errors of failed calls, which are both ours and torch's.

Programs on ``torch.distributed`` catch ``RuntimeError`` or ``DistBackendError``; our classes state the cause. The
combined classes are created on first use, as attributes of this module with our classes' names. So another process,
such as a worker of torch's DataLoader, can unpickle an error or its class.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch.distributed import DistBackendError

from blinkccl import errors

Error = TypeVar("Error", bound=errors.BlinkError)

_both: dict[type[errors.BlinkError], Any] = {}


def for_torch(error: Error, call: str = "") -> Error:
    """``error`` as an object of its own class and of ``DistBackendError``, with the same attributes.

    The message is the same; if a ``call`` timed out, it begins with the words that programs search for.
    """
    if isinstance(error, DistBackendError):
        return error
    args = error.args
    if call and isinstance(error, errors.DeadlineError):
        message = str(error).replace("(BLINK_TIMEOUT)", "(torch's timeout)")  # BLINK_TIMEOUT has no effect here
        args = (f"{call}: Timed out - {message}", *args[1:])
    made: Error = _restored(type(error), args, error.__dict__)
    return made


def __getattr__(name: str) -> Any:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.BlinkError):
        return _class(kind)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _class(kind: type[errors.BlinkError]) -> Any:
    if kind not in _both:
        members = {"__doc__": kind.__doc__, "__module__": __name__, "__reduce__": _reduced, "ours": kind}
        _both[kind] = type(kind.__name__, (kind, DistBackendError), members)
    return _both[kind]


def _reduced(made: Any) -> tuple[Any, ...]:
    return _restored, (made.ours, made.args, made.__dict__)


def _restored(kind: type[errors.BlinkError], args: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    both = _class(kind)
    made = both.__new__(both)
    made.args = args
    made.__dict__.update(attributes)
    return made
