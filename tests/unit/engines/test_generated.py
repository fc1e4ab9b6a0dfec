"""The engine of generated code: refusals, timeouts, and compilations."""

from dataclasses import replace

import pytest
from programs_by_hand import one_message_held_back

from blinkccl.codegen.layout import Geometry
from blinkccl.codegen.text import WIRES
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.oracle import make_inputs
from blinkccl.errors import DeadlineError, UnsupportedError, UsageError
from blinkccl.schedule.program import Program
from support import generated
from support.engines import ENGINES
from support.execution import difference
from support.generated import GeneratedOptions

pytestmark = pytest.mark.skipif(ENGINES["generated"].missing is not None, reason=str(ENGINES["generated"].missing))


def with_slots(program: Program, slots: int) -> Program:
    return replace(program, channels=tuple(replace(channel, slots=slots) for channel in program.channels))


def test_a_program_that_needs_an_early_slot_is_refused() -> None:
    program = one_message_held_back()
    with pytest.raises(UnsupportedError, match=r"would deadlock: .*rank 0, channel 0, step 1.*give its queues more"):
        difference(generated.run, program, count=100)
    inputs, call = make_inputs(program.collective, 400, "int32"), CollectiveCall.of(program.collective, "int32", 400)
    for protocol in WIRES:
        session = generated.Session([program], Geometry(1, 2, 128, 128))
        outputs = session.run(program, inputs, call, chunk_bytes=16, protocol=protocol)
        assert all(out is not None and (out == inputs[0]).all() for out in outputs)
    assert difference(generated.run, with_slots(program, 2), count=400, chunk_bytes=16) is None


def test_a_missing_message_is_named_at_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 forwards nothing."""
    program = with_slots(one_message_held_back(), 2)
    whole = generated.code
    monkeypatch.setattr(generated, "code", lambda *arguments: whole(*arguments).replace("case 1:", "case 77:"))
    monkeypatch.setattr(generated, "_libraries", {})
    inputs, call = make_inputs(program.collective, 90, "int32"), CollectiveCall.of(program.collective, "int32", 90)
    message = r"rank [02] waited longer than 0.2 s in channel 0 for (a message from|a free slot to) rank [012] "
    for protocol in WIRES:
        options = GeneratedOptions(protocol)
        with pytest.raises(DeadlineError, match=message):
            generated.run(program, inputs, call, chunk_bytes=16, deadline_s=0.2, options=options)


def test_bad_options_are_refused() -> None:
    program = with_slots(one_message_held_back(), 2)
    inputs, call = make_inputs(program.collective, 10, "int32"), CollectiveCall.of(program.collective, "int32", 10)
    with pytest.raises(UnsupportedError, match="protocol 'll256' is not one of simple, ll, ll128"):
        generated.run(program, inputs, call, options=GeneratedOptions("ll256"))
    with pytest.raises(UsageError, match="deadline_s must be positive"):
        generated.run(program, inputs, call, deadline_s=0)
    with pytest.raises(UsageError, match="parts: expected a positive multiple of 1, got 0"):
        generated.run(program, inputs, call, options=GeneratedOptions(parts=0))
    session = generated.Session([program], Geometry(1, 2, 128, 128))
    for protocol, capacity in (("simple", 128), ("ll", 64), ("ll128", 120)):
        with pytest.raises(UsageError, match=f"expected at most {capacity} bytes for protocol {protocol}, got 256"):
            session.run(program, inputs, call, chunk_bytes=256, protocol=protocol)


def test_it_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program = with_slots(one_message_held_back(), 3)
    generated.prepare([program])
    monkeypatch.setattr(generated, "build", None)
    assert difference(generated.run, program, count=100) is None
    assert difference(generated.run, with_slots(program, 5), count=100) is None  # The code does not depend on slots.


def test_without_a_compiler_the_error_names_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler --fast")
    assert "CXX names 'no-such-compiler --fast', which does not exist" in str(ENGINES["generated"].missing)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    assert "none of c++, g++ and clang++ is on PATH" in str(ENGINES["generated"].missing)
