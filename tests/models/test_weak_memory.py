"""The search of executions agrees with PTX's memory model on the classical litmus tests.

The expected results come from the PTX ISA's chapter "Memory Consistency Model" (its axioms and litmus tests), with all
accesses strong and at one scope. PTX allows LB without dependencies; in the search only a marked load may be overtaken.
"""

from typing import Any

import pytest

from support.litmus import Thread
from support.weak_memory import search

#: Threads by litmus test, each a list of "x=1" (a store), "r=x" (a load), "|" (the fence of the variant), "r?x" (a load
#: that may be overtaken); and the outcome to test, as values of the registers in order.
TESTS = {
    "MP": (["x=1 | y=1", "a=y | b=x"], (1, 0)),
    "SB": (["x=1 | a=y", "y=1 | b=x"], (0, 0)),
    "LB": (["a?x | y=1", "b?y | x=1"], (1, 1)),
    "R": (["x=1 | y=1", "y=2 | a=x", "b=y c=y"], (0, 1, 2)),
    "S": (["x=2 | y=1", "a=y | x=1", "b=x c=x"], (1, 1, 2)),
    "2+2W": (["x=1 | y=2", "y=1 | x=2", "a=x b=x", "c=y d=y"], (2, 1, 2, 1)),
    "WRC": (["x=1", "a=x | y=1", "b=y | c=x"], (1, 1, 0)),
    "IRIW": (["x=1", "y=1", "a=x | b=y", "c=y | d=x"], (1, 0, 1, 0)),
    "ISA2": (["x=1 | y=1", "a=y | z=1", "b=z | c=x"], (1, 1, 0)),
    "CoRR": (["x=1", "a=x b=x"], (1, 0)),
    "CoWR": (["x=1 a=x", "x=2 b=x"], (2, 1)),
}
VARIANTS = ("relaxed", "release-acquire", "fence", "sc fence", "sc")
#: Variants that forbid the outcome, by test.
FORBIDDEN = {
    "MP": {"release-acquire", "fence", "sc fence", "sc"},
    "SB": {"sc fence", "sc"},
    "LB": {"release-acquire", "fence", "sc fence", "sc"},
    "R": {"sc fence", "sc"},
    "S": {"release-acquire", "fence", "sc fence", "sc"},
    "2+2W": {"sc fence", "sc"},
    "WRC": {"release-acquire", "fence", "sc fence", "sc"},
    "IRIW": {"sc fence", "sc"},
    "ISA2": {"release-acquire", "fence", "sc fence", "sc"},
    "CoRR": set(VARIANTS),
    "CoWR": set(VARIANTS),
}


def litmus(texts: list[str], variant: str) -> frozenset[Any]:
    """The outcomes of a test."""
    release, acquire = {"release-acquire": ("release", "acquire"), "sc": ("sc", "sc")}.get(
        variant, ("relaxed", "relaxed")
    )
    threads = []
    for number, text in enumerate(texts):
        thread, late = Thread(f"t{number}"), []
        for word in text.split():
            if word == "|":
                if "fence" in variant:
                    thread.fence("sc" if variant == "sc fence" else "acq_rel")
            elif "?" in word:
                register, place = word.split("?")
                if variant in ("release-acquire", "sc"):
                    thread.load(register, place, acquire)
                else:
                    thread.load_later(register, place)
                    late.append(register)
            elif word[0] in "xyz":
                place, value = word.split("=")
                thread.store(place, int(value), release)
            else:
                register, place = word.split("=")
                thread.load(register, place, acquire)
        for register in late:
            thread.use(register)
        threads.append(thread)

    def outcome(registers: list[dict[str, Any]]) -> tuple[Any, ...]:
        return tuple(value for _, value in sorted(pair for some in registers for pair in some.items()))

    result = search(threads, collect=outcome)
    assert result.finding is None
    return result.ends


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", TESTS)
def test_litmus(name: str, variant: str) -> None:
    texts, outcome = TESTS[name]
    assert (outcome in litmus(texts, variant)) == (variant not in FORBIDDEN[name])
