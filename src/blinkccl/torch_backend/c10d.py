"""torch.distributed as type checkers are to see it: its stubs differ from version to version, so mostly Any."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

dist: Any = import_module("torch.distributed")

#: The functions behind ``torch.distributed``, and torch's books of process groups.
internals: Any = import_module("torch.distributed.distributed_c10d")

if TYPE_CHECKING:

    class ProcessGroup:
        """What we use of torch's."""

        group_name: str

        def __init__(self, *arguments: Any) -> None: ...

        def rank(self) -> int: ...

        def size(self) -> int: ...

    class Work:
        """A call that was issued."""

        def wait(self, timeout: timedelta = timedelta(0)) -> bool: ...

        def is_completed(self) -> bool: ...

        def is_success(self) -> bool: ...

        def exception(self) -> Any: ...

        def result(self) -> list[Any]: ...

        def get_future(self) -> Any: ...

    class DistBackendError(RuntimeError):
        """A backend failed."""

else:
    ProcessGroup, Work, DistBackendError = dist.ProcessGroup, dist.Work, dist.DistBackendError
