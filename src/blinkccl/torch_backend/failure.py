"""Our errors as torch's: what a failed call raises is both.

Programs on ``torch.distributed`` catch ``RuntimeError`` or ``DistBackendError``; ours say whose move it is. The classes
are made when they are first needed, and are attributes of this module by the names of ours: so another process finds
them where an error is pickled, or only its class, as by a worker of torch's DataLoader.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch.distributed import DistBackendError

from blinkccl import errors

Error = TypeVar("Error", bound=errors.BlinkError)

_both: dict[type[errors.BlinkError], Any] = {}


def for_torch(error: Error, call: str = "") -> Error:
    """``error`` as an object of its own class and of ``DistBackendError``, with the same attributes.

    The message is the same too; where a ``call`` ran out of time it begins as programs that look for that expect.
    """
    if isinstance(error, DistBackendError):
        return error
    args = error.args
    if call and isinstance(error, errors.DeadlineError):
        said = str(error).replace("(BLINK_TIMEOUT)", "(torch's timeout)")  # which is nothing here
        args = (f"{call}: Timed out - {said}", *args[1:])
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
