"""Models of two protocols around messages: the record of the block that gave up, and decisions by call.

``status`` models ``give_up`` (native/device/blink/state.h) with ``Engine::status`` (native/shim/engine.cpp) on the
host. ``agreement`` models class ``Agreement`` (native/shim/shared_page.h, shared_page.cpp); the search confirms the
proof in its comment. ``but`` names the change of a variant.
"""

from collections.abc import Sequence

from support.litmus import Registers, Thread
from support.weak_memory import Searched, search


def status(blocks: int = 2, but: str = "") -> Searched:
    """Blocks that give up at the same time, and a host that reads the status."""
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


def agreement(ranks: Sequence[Sequence[int]], decisions: int, but: str = "") -> Searched:
    """Each rank makes its calls in ``ranks``; concurrently rank 0 decides ``decisions`` times.

    An open word holds the number of calls that have passed; a sealed word is below 0. The values are 1, 2, ….
    """
    threads = [Thread(f"rank{rank}") for rank in range(len(ranks))]
    for one, calls in zip(threads, ranks, strict=True):
        others = sum(map(len, ranks)) - len(calls)
        for call in calls:
            _call(one, call, decisions, others + 1, but)
    decider = Thread("decider")
    decider.let("before", 0)
    for number in range(1, decisions + 1):
        _decide(decider, number, sum(map(len, ranks)), but)

    def wrong(registers: list[Registers]) -> str | None:
        decided = [(registers[-1][f"made{number}"], number) for number in range(1, decisions + 1)]
        for rank, calls in enumerate(ranks):
            for call in calls:
                expected = max((number for at, number in decided if at <= call), default=0)
                if registers[rank][f"used{call}"] != expected:
                    return (
                        f"call {call} of rank {rank} uses {registers[rank][f'used{call}']}, not {expected} of {decided}"
                    )
        return None

    return search([*threads, decider], at_end=wrong)


def _sealed(at: int) -> int:
    return -1 - at


def _call(one: Thread, call: int, decisions: int, tries: int, but: str) -> None:
    """``value_for``; ``tries`` is the maximum number of changes of the word before this rank swaps it."""
    look = "relaxed" if but == "word relaxed" else "acquire"
    one.let(f"used{call}", 0)
    one.let("on", True)
    mark = call if but == "raised by one too few" else call + 1
    for number in range(1, decisions + 1):
        word = f"word{number}"

        def come_to(word: str = word, number: int = number) -> None:
            one.load("word", word, look)
            one.let("swapped", False)

            def swap() -> None:
                if but == "raised without a swap":
                    one.store(word, mark, "relaxed")
                    one.let("swapped", True)
                    return
                one.cas("old", word, lambda r: r["word"], mark, look)
                one.let("swapped", lambda r: r["old"] == r["word"])
                one.let("word", lambda r: r["old"])

            for _ in range(0 if but == "not raised" else tries):
                one.when(lambda r: not r["swapped"] and 0 <= r["word"] < mark, swap)
            one.let("on", lambda r: r["word"] < 0 and _sealed(r["word"]) <= call)
            one.when(lambda r: r["on"], lambda: one.load(f"used{call}", f"value{number}", "relaxed"))

        one.when(lambda r: r["on"], come_to)
    # Clear unused registers, so that states that differ only in them are equal.
    for name in ("word", "old", "swapped", "on"):
        one.let(name, None)


def _decide(one: Thread, number: int, tries: int, but: str) -> None:
    """``decide``; ``before`` is the first call of the previous decision."""
    word, value = f"word{number}", f"value{number}"
    if but != "sealed before its value":
        one.store(value, number, "relaxed")
    one.load("word", word, "relaxed")
    one.let("swapped", False)

    def at(r: Registers) -> int:
        return max(r["word"], r["before"])

    def swap() -> None:
        if but == "sealed without a swap":
            one.store(word, lambda r: _sealed(at(r)), "release")
            one.let("swapped", True)
            return
        order = "relaxed" if but == "sealed relaxed" else "release"
        one.cas("old", word, lambda r: r["word"], lambda r: _sealed(at(r)), order)
        one.let("swapped", lambda r: r["old"] == r["word"])
        one.let("word", lambda r: r["old"])

    for _ in range(tries + 1):
        one.when(lambda r: not r["swapped"], swap)
    if but == "sealed before its value":
        one.store(value, number, "relaxed")
    one.let("before", at)
    one.let(f"made{number}", at)
    for name in ("word", "old", "swapped"):
        one.let(name, None)
