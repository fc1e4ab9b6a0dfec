"""Every execution of small instances of the message protocols is correct, and every step of them is needed.

Results of the search for LL and LL128, whose messages have flags and no counters:

- On their own memory, where only the sender writes, stores and loads of heads are relaxed. The store of a head exists
  only after its reader has seen all flags of the message. The next message in the slot exists only after the writer has
  seen the head. A word with its flag is one store, so the old word was read whole. No order between places is used, and
  no store may be early: a load that was overtaken would have another flag.
- A line of LL128 arrives in parts, the flag last, and is loaded in parts. Its lanes therefore load it again after they
  have voted that the flag was seen, and have converged, because a vote orders nothing. This load has no flag of its
  own: a relaxed head is correct only if no store overtakes a load that is before it and before a barrier. PTX's memory
  model allows such stores.
- On the same memory, LL128's data would be mistaken for LL's flags. If the reader zeroed them, the head would have to
  be released and acquired. Otherwise the next message may precede the zero in coherence order and be lost forever.
- A head that LL stored relaxed may be acquired by a later launch of Simple. The end of a kernel is a fence, so this is
  correct. Within one launch a connection must not have both.
- Flags that repeat need the sweep, and the arrival of stores of half a round ago.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from message_models import Lines, Shape, flagged, gives_up, launches, published, relay, simple

from support.weak_memory import Search, Searched

TWO = Shape(threads=2, slots=2, messages=3)
LL, LL128 = Lines(), Lines(wires=("LL128",))
#: The order that a head would need if stores overtook loads.
ORDERED = replace(LL128, head="release", acquire="acquire", overtaken=True)
#: Both wires in turn on one connection.
BOTH = ("LL128", "LL")
SAME = Shape(threads=2, slots=1, messages=4)
#: Both wires on the same memory.
ZEROED = Lines(BOTH, "release", "acquire", apart=False, clears=True)
#: Long messages at both ends of a round of flags, short ones between them.
ROUND = Shape(2, 1, 5, (2, 1, 1, 1, 2))
#: LL at both ends of a round of flags, the other wire between them.
SELDOM, SELDOM_LL = Shape(2, 1, 5), ("LL", "LL128", "LL128", "LL128")
ROUND_OF_TWO = Shape(2, 2, 11, (2, 2, 1, 1, 1, 1, 1, 1, 2, 2, 2))

Model = Callable[[], Searched]
SOUND: dict[str, Model] = {
    "Simple": lambda: simple(TWO),
    "Simple, three threads": lambda: simple(Shape(3, 2, 5)),
    "Simple, one slot": lambda: simple(Shape(2, 1, 3)),
    "Simple, with publishers": lambda: published(Shape(2, 2, 4)),
    "Simple, with publishers and free slots": lambda: published(Shape(2, 4, 4)),
    "Simple, with publishers and one slot": lambda: published(Shape(2, 1, 3)),
    "Simple through a third block": lambda: relay(Shape(2, 2, 2)),
    "LL": lambda: flagged(Shape(2, 2, 4), LL),
    "LL, three threads": lambda: flagged(Shape(3, 2, 4), LL),
    "LL128": lambda: flagged(Shape(2, 2, 4), LL128),
    "LL128, loads that stores overtake, heads in order": lambda: flagged(TWO, ORDERED),
    "LL and LL128 in turns": lambda: flagged(SAME, Lines(BOTH)),
    "LL and LL128 on the same memory": lambda: flagged(SAME, ZEROED),
    "flags come round": lambda: flagged(ROUND, Lines(modulus=4)),
    "flags come round, two slots": lambda: flagged(ROUND_OF_TWO, Lines(modulus=8)),
    "flags come round while another wire is used": lambda: flagged(SELDOM, Lines(SELDOM_LL, modulus=4)),
    "launches": lambda: launches(("Simple", "LL", "Simple"), LL),
    "launches of LL and LL128": lambda: launches((*BOTH, "LL128"), Lines(BOTH), slots=1),
    "an execution is given up": gives_up,
}
SLOW: dict[str, Model] = {
    "Simple, larger": lambda: simple(Shape(4, 3, 8)),
    "Simple, with publishers, larger": lambda: published(Shape(3, 3, 7)),
    "Simple through a third block, larger": lambda: relay(Shape(2, 2, 5)),
    "LL, larger": lambda: flagged(Shape(4, 3, 7), LL),
    "LL128, larger": lambda: flagged(Shape(3, 3, 9), LL128),
    "LL and LL128 in turns, larger": lambda: flagged(Shape(3, 2, 6), Lines(BOTH)),
    "flags come round, larger": lambda: flagged(Shape(2, 2, 19, (2, 2, *(1, 1, 1, 1, 1, 1, 2) * 3)), Lines(modulus=8)),
    "launches, more": lambda: launches(("Simple", "LL", "Simple", "LL", "LL", "Simple"), LL),
}

OTHERS, LOST, RACE = "is another's", "nobody can go on", "race: "
#: Models by the step left out or weakened, with the fault that the search must report.
REFUTED: dict[str, tuple[Model, str]] = {
    **{
        f"Simple, {but}": ((lambda but=but: simple(TWO, but)), RACE)
        for but in (
            "tail relaxed",
            "tail before the barrier",
            "tail not acquired",
            "head relaxed",
            "head not acquired",
            "heads not asked",
            "a slot too many",
            "job read after the last barrier",
            *(
                f"no {which} of the {end}"
                for which in ("first barrier", "last barrier")
                for end in ("writer", "reader")
            ),
        )
    },
    **{
        f"with publishers, {but}": ((lambda but=but: published(Shape(2, 3, 3), but)), RACE)
        for but in (
            "no order by told",
            "told not awaited",
            "no order by free",
            "free not awaited",
            "tail before the barrier",
            "tail relaxed",
            "no last barrier of the writer",
        )
    },
    **{
        f"with publishers, {but}": ((lambda but=but: published(Shape(2, 2, 4), but)), RACE)
        for but in ("head relaxed", "no last barrier of the reader")
    },
    **{
        f"through a third block, {but}": ((lambda but=but: relay(TWO, but)), RACE)
        for but in ("tail relaxed in the middle", "no first barrier of the middle", "no last barrier of the middle")
    },
    "LL, a slot too many": (lambda: flagged(TWO, LL, "a slot too many"), LOST),
    "LL, heads not asked": (lambda: flagged(TWO, LL, "heads not asked"), LOST),
    **{
        f"LL, no {which} of the {end}": (
            (lambda which=which, end=end: flagged(TWO, LL, f"no {which} of the {end}")),
            RACE,
        )
        for which in ("first barrier", "last barrier")
        for end in ("writer", "reader")
    },
    "LL128, the flag is not the last part of a line": (lambda: flagged(TWO, replace(LL128, flag_last=False)), OTHERS),
    "LL128, no reload behind the vote": (lambda: flagged(TWO, replace(LL128, reloads=False)), OTHERS),
    "LL128, lanes that have not converged": (lambda: flagged(TWO, replace(LL128, converges=False)), OTHERS),
    "LL128, loads that stores overtake": (lambda: flagged(TWO, replace(LL128, overtaken=True)), OTHERS),
    "on the same memory, not zeroed": (lambda: flagged(SAME, Lines(BOTH, apart=False)), OTHERS),
    "on the same memory, heads relaxed": (lambda: flagged(SAME, replace(ZEROED, head="relaxed")), LOST),
    "on the same memory, heads not acquired": (lambda: flagged(SAME, replace(ZEROED, acquire="relaxed")), LOST),
    "flags come round, not swept": (lambda: flagged(ROUND, Lines(modulus=4, sweeps=())), OTHERS),
    "flags come round in two slots, not swept": (lambda: flagged(ROUND_OF_TWO, Lines(modulus=8, sweeps=())), OTHERS),
    "flags come round, only LL sweeps": (lambda: flagged(SELDOM, Lines(SELDOM_LL, modulus=4, sweeps=("LL",))), OTHERS),
    "flags come round, old stores under way": (lambda: flagged(ROUND, Lines(modulus=4, old_arrive=False)), OTHERS),
    "launches, no fence between": (
        lambda: launches(("Simple", "LL", "Simple"), LL, "no fence between launches"),
        RACE,
    ),
    "launches in no order": (lambda: launches(("Simple", "LL"), LL, "no order between launches"), RACE),
    "an execution is given up, no barrier in close()": (lambda: gives_up("no barrier of close()"), RACE),
}


@pytest.mark.parametrize("name", SOUND)
def test_every_execution_is_correct(name: str) -> None:
    result = SOUND[name]()
    assert result.finding is None, str(result.finding)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SLOW)
def test_every_execution_of_a_larger_instance_is_correct(name: str) -> None:
    result = SLOW[name]()
    assert result.finding is None, str(result.finding)


@pytest.mark.parametrize("name", REFUTED)
def test_no_step_can_be_left_out(name: str) -> None:
    model, expected = REFUTED[name]
    finding = model().finding
    assert finding is not None
    assert expected in finding.what, str(finding)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SOUND, *REFUTED])
def test_fewer_interleavings_give_the_same_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is the same with all interleavings."""
    model = SOUND[name] if name in SOUND else REFUTED[name][0]
    fewer = model()
    monkeypatch.setattr(Search, "_alone", lambda *_: False)
    every = model()
    assert (every.finding is None) == (fewer.finding is None), str(every.finding)
    assert every.finding is not None or every.states >= fewer.states


def test_a_finding_is_printed_as_an_execution() -> None:
    finding = flagged(SAME, replace(ZEROED, head="relaxed")).finding
    assert finding is not None
    lines = str(finding).splitlines()
    positions = [
        lines.index(line) for line in ("  reader0: relaxed store line0[0] := 0", "  reader0: relaxed store head := 1")
    ]
    wiped = "  writer0: relaxed store line0[0] := (('LL', 1), (1, 0)), before 0 in coherence order"
    assert [*positions, lines.index(wiped)] == sorted([*positions, lines.index(wiped)])
