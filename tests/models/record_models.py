"""Two protocols around messages: who says why it gave up, and which decision is in force from which call on.

``status`` is ``give_up`` (native/device/blink/state.h) with ``Engine::status`` (native/shim/engine.cpp) on the host.
``agreement`` is class ``Agreement`` (native/shim/shared_page.h, shared_page.cpp), whose comment proves what is searched
for here. ``but`` names what a variant does otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.weak_memory import Registers, Searched, Thread, search


def status(blocks: int = 2, but: str = "") -> Searched:
    """Blocks that give up at the same time, and a host that looks."""
    threads = []
    for number in range(1, blocks + 1):
        one = Thread(f"block{number}")

        def record(one: Thread = one, number: int = number) -> None:
            one.store("status.position", number)
            one.store("status.first", ("code", number), "relaxed" if but == "code relaxed" else "release")

        if but == "no claim":
            one.load("old", "status.first", "relaxed")
        else:
            one.cas("old", "status.first", 0, ("claimed", number))
        one.when(lambda r: r["old"] == 0, record)
        threads.append(one)
    host = Thread("host")
    host.load("first", "status.first", "relaxed" if but == "host relaxed" else "acquire")

    def read() -> None:
        host.load("position", "status.position")
        host.check(lambda r: r["position"] == r["first"][1], "the record of another block than the code's")

    written = ("code", "claimed") if but == "claim looks written" else ("code",)
    host.when(lambda r: r["first"] != 0 and r["first"][0] in written, read)
    return search([*threads, host])


def decision(at: str, index: int) -> str:
    return f"decisions[{index}].{at}"


def agreement(
    calls: int, decisions: int, others: Sequence[Sequence[int]] = ((1, 2, 3),), history: int = 2, but: str = ""
) -> Searched:
    """A rank makes ``calls`` calls, rank 0 tries to decide ``decisions`` times beside it, and ``others`` reach so far.

    Ranks learn nothing from each other, and what they read changes nothing: of all but one it is enough how far they
    are. That one must use, at every call, the last decision for it of all that are ever made; then all use the same.
    """
    released = but == "stores released only"
    order, look = ("release", "acquire") if released else ("sc", "sc")
    one, decider = Thread("rank0"), Thread("decider")
    for call in range(calls):
        _call(one, call, history, order, look, but)
    more = [Thread(f"rank{rank}") for rank in range(1, len(others) + 1)]
    for rank, calls_reached in enumerate(others, 1):
        for reached in calls_reached:
            more[rank - 1].store(f"reached{rank}", reached, order)
    for number in range(1, decisions + 1):
        _decide(decider, number, 1 + len(others), range(history), order, look, but)

    def wrong(registers: list[Registers]) -> str | None:
        made = [(at, number) for number in range(1, decisions + 1) if (at := registers[-1][f"made{number}"])]
        for call in range(calls):
            expected = max((number for at, number in made if at <= call), default=0)
            if registers[0][f"used{call}"] != expected:
                return f"call {call} uses decision {registers[0][f'used{call}']}, not {expected} of {made}"
        return None

    return search([one, *more, decider], at_end=wrong)


def _call(one: Thread, call: int, history: int, order: str, look: str, but: str) -> None:
    """``value_for``."""
    one.store("reached0", call + 1, order)
    if but == "proposed not looked at":
        pass
    elif but == "proposed read once":
        one.load("proposed", "proposed", look)
    else:
        one.wait("proposed", lambda at, r: at == 0 or at > call, look, said=f"none ≤ {call}")
    one.load("decided", "decided", look)
    one.let("used", 0)
    one.let("found", False)
    for back in range(history):

        def look_at(back: int = back) -> None:
            def index(r: Registers) -> int:
                return int(r["decided"] - 1 - back) % history

            among = [decision("from", i) for i in range(history)]
            one.load("from", lambda r: decision("from", index(r)), "relaxed", among)

            def take() -> None:
                values = [decision("value", i) for i in range(history)]
                one.load("used", lambda r: decision("value", index(r)), "relaxed", values)
                one.let("found", True)

            one.when(lambda r: r["from"] <= call, take)

        one.when(lambda r, back=back: not r["found"] and r["decided"] - back > 0, look_at)
    one.let(f"used{call}", lambda r: r["used"])
    # What is of no use any more, so that states that differ in it are one.
    for name in ("used", "found", "decided", "from"):
        one.let(name, None)


def _decide(one: Thread, number: int, ranks: int, slots: range, order: str, look: str, but: str) -> None:
    """``pick``, ``propose``, ``passed``, ``commit`` or ``withdraw``; value ``number`` stands for the decision's."""
    history = len(slots)
    if number == 1:
        one.let("count", 0)
        for i in slots:
            one.let(f"from{i}", 0)
    for rank in range(ranks):
        one.load(f"r{rank}", f"reached{rank}", look)

    def reached(r: Registers) -> list[int]:
        return [r[f"r{rank}"] for rank in range(ranks)]

    def may(r: Registers) -> bool:
        full = r["count"] >= history and but != "ring overwritten at once"
        return not full or min(reached(r)) > r[f"from{(r['count'] + 1) % history}"]

    one.let("K", lambda r: max(reached(r)) + 2 if may(r) else 0)

    def propose() -> None:
        if but == "decided, then proposed":
            _commit(one, number, history, order)
            one.store("proposed", lambda r: r["K"], order)
            one.store("proposed", 0, order)
            return
        one.store("proposed", lambda r: r["K"], order)
        for rank in range(ranks):
            one.load(f"r{rank}", f"reached{rank}", look)
        ahead = 1 if but == "passed by one too many" else 0
        one.let("passed", lambda r: but != "nobody asked whether it has passed" and max(reached(r)) > r["K"] + ahead)

        def commit() -> None:
            if but == "proposal ended before the pair":
                one.store("proposed", 0, order)
            _commit(one, number, history, order)
            if but not in ("proposal ended before the pair", "proposal never ended"):
                one.store("proposed", 0, order)

        def withdraw() -> None:
            if but != "withdrawn in silence":
                one.store("proposed", 0, order)

        one.when(lambda r: not r["passed"], commit)
        one.when(lambda r: r["passed"], withdraw)

    one.when(lambda r: r["K"] != 0, propose)
    for name in ("K", "passed", *(f"r{rank}" for rank in range(ranks))):
        one.let(name, None)


def _commit(one: Thread, number: int, history: int, order: str) -> None:
    def place(which: str) -> Any:
        return lambda r: decision(which, r["count"] % history)

    for which, value in (("from", lambda r: r["K"]), ("value", number)):
        one.store(place(which), value, "relaxed", [decision(which, i) for i in range(history)])
    one.store("decided", lambda r: r["count"] + 1, order)
    for i in range(history):
        one.let(f"from{i}", lambda r, i=i: r["K"] if r["count"] % history == i else r[f"from{i}"])
    one.let("count", lambda r: r["count"] + 1)
    one.let(f"made{number}", lambda r: r["K"])
