"""The language of litmus tests: threads as lists of operations, for support.weak_memory.

Threads are straight lines (a loop is unrolled, a wait is one operation), so every execution is finite.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Registers = dict[str, Any]
#: A constant, or a function of the thread's registers.
Value = Any


@dataclass(frozen=True, slots=True)
class Op:
    """One operation; ``at`` names a place, or computes the name from ``among``."""

    kind: str
    at: Any = None
    order: str = ""
    register: str = ""
    value: Value = None
    test: Any = None
    text: str = ""
    among: tuple[str, ...] = ()


@dataclass(slots=True)
class Thread:
    """A thread of a block, operation by operation; blocks of one name share barriers."""

    name: str
    block: str = ""
    ops: list[Op] = field(default_factory=list)

    def store(self, at: Any, value: Value, order: str = "plain", among: Sequence[str] = ()) -> None:
        self.ops.append(Op("store", at, order, value=value, among=tuple(among)))

    def load(self, register: str, at: Any, order: str = "plain", among: Sequence[str] = ()) -> None:
        self.ops.append(Op("load", at, order, register, among=tuple(among)))

    def load_later(self, register: str, at: str) -> None:
        """Add a relaxed load that stores may overtake; :meth:`use` marks the first need of its value."""
        self.ops.append(Op("later", at, "relaxed", register))

    def use(self, register: str) -> None:
        self.ops.append(Op("use", register=register))

    def wait(
        self, at: str, test: Callable[..., bool], order: str = "relaxed", register: str = "", said: str = ""
    ) -> None:
        """Add a loop of loads until ``test(value, registers)``."""
        self.ops.append(Op("wait", at, order, register, test=test, text=said))

    def arrived(self, at: str, test: Callable[[Any], bool]) -> None:
        """Mark an old store (``test(value)``) as visible: older values are not read any more."""
        self.ops.append(Op("arrived", at, "relaxed", test=test))

    def cas(self, register: str, at: str, expected: Value, value: Value, order: str = "relaxed") -> None:
        """Add a compare-and-swap: ``register`` gets the old value; ``value`` is stored if that was ``expected``."""
        self.ops.append(Op("cas", at, order, register, value=value, test=expected))

    def fence(self, order: str = "acq_rel") -> None:
        self.ops.append(Op("fence", order=order))

    def barrier(self) -> None:
        """Add a barrier of all threads of the block."""
        self.ops.append(Op("barrier"))

    def let(self, register: str, value: Value) -> None:
        self.ops.append(Op("let", register=register, value=value))

    def check(self, test: Callable[[Registers], bool], what: str) -> None:
        self.ops.append(Op("check", test=test, text=what))

    def when(self, test: Callable[[Registers], bool], then: Callable[[], None]) -> None:
        """Add the operations of ``then``, executed if ``test(registers)``."""
        at = len(self.ops)
        self.ops.append(Op("skip"))
        then()
        self.ops[at] = Op("skip", test=test, value=len(self.ops))


def value_of(value: Value, registers: Registers) -> Any:
    return value(registers) if callable(value) else value
