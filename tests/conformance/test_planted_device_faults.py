"""Faults in the device layer that need blocks with threads, or a weak memory, to be noticed.

Each fault is planted in a copy of the headers, and the tests of the kernel context must notice it on emulated blocks.
With BLINK_ALL_TESTS=1 blocks of one thread run too, which shows the benefit of the emulation.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from blinkccl.native.headers import DIRECTORY, abi
from support.emulation import CXX, DEVICE, EMULATE, machine_library, needs_compiler
from support.processes import fixed_addresses

pytestmark = needs_compiler

HERE = Path(__file__).parent
NATIVE_TESTS = DEVICE.parent / "tests"


@dataclass(frozen=True)
class Fault:
    """A fault of one or more edits: the text between ``«`` and ``»``, statements or an expression, becomes ``new``."""

    name: str
    #: (file, the text around «the place», new).
    edits: tuple[tuple[str, str, str], ...]
    #: True if the tests notice it on blocks of one thread; None: sometimes, depending on the system's schedule.
    without_threads: bool | None = False
    #: Launches until it is noticed; for most faults at most ten.
    within: int = 600


def fault(name: str, *edits: str, seen: bool | None = False, within: int = 600) -> Fault:
    return Fault(name, tuple(zip(edits[::3], edits[1::3], edits[2::3], strict=True)), seen, within)


_READY = "«any_of_workers(Wire::kNumber, !ready)»"
_SWEEP = "«sweep<Wire>(state);»"
_EACH = "for (uint32_t i = thread_index(); i < ends; i += step)"
_ENDS = "uint32_t{order.receives} + order.sends"
_ADVANCE = "«advance(state, state.sides[state.at[i]]);»"
_COUNTER = "i < notice.receives ? side.head : side.tail"
_PUBLISH = f"«store_release({_COUNTER}, ++state.published[end]);»"
_FREED, _FREE = "«arrive_at(kFree + turn, 2 * kWarp);»\n  return", "«meet_at(kFree + turn, 2 * kWarp);»"
_TOLD, _TELL = (
    "«meet_at(kTold + turn, 2 * kWarp);»",
    "«if (thread_index() < kWarp) arrive_at(kTold + turn, 2 * kWarp);»",
)
_TELLS = "«if (apart) {\n      tell(turn);\n    } else {\n      publish(state, notice);\n    }»"
_OPENED = "«for (uint32_t turn = 0; turn < 2; ++turn) arrive_at(kFree + turn, 2 * kWarp);»"
_CLOSED = "«for (uint32_t turn = 0; turn < 2; ++turn) meet_at(kFree + turn, 2 * kWarp);»"
_SIDE = "const Side& side = state.sides[state.at[i]];"
_VOTE = "«Units<Wire>::warp_all(ready)»"
_LL_READ = "«raw.low >> 32 == wanted && raw.high >> 32 == wanted»"
_LL128_WRITE = "«store_halves(message + unit * 16, {data.low, has_flag(unit) ? flag(position) : data.high});»"
_LINES = "«2 * static_cast<Word>(state.part) + (wire == LL128::kNumber ? 1 : 0)»"
_SYNC = "«Units<Wire>::warp_sync();»"

# fmt: off
FAULTS = (
    fault("no barrier between the waits and the fold",
          "execute.h", _READY, "!ready"),
    fault("a thread leaves before a barrier",
          "execute.h", _READY, "any_of_workers(Wire::kNumber, !ready) || thread_index() == 33"),
    fault("no barrier after the fold",
          "execute.h", "«any_of_workers(Wire::kNumber, !moved)»", "!moved"),
    fault("a tail is raised by a thread that has not waited for the others",
          "execute.h", _SWEEP, f"""sweep<Wire>(state); {_EACH.replace("ends", _ENDS)} {{ {_SIDE}
              if (i >= order.receives && Units<Wire>::kCounted) store_release(side.tail, side.position + 1); }}"""),
    fault("a head is raised before the data have been read",
          "execute.h", _READY, f"""[&] {{ if (any_of_workers(Wire::kNumber, !ready)) return true;
              {_EACH.replace("ends", _ENDS)} {{ {_SIDE}
              if (i < order.receives) store_release(side.head, side.position + 1); }} return false; }}()""",
          seen=None),
    fault("slots are not wiped where flags come round",
          "execute.h", _SWEEP, ";", seen=True),
    fault("positions do not advance",
          "execute.h", _ADVANCE, ";", seen=True),
    fault("positions advance behind the barrier",
          "execute.h", _ADVANCE, ";",
          "execute.h", _TELLS,
          f"""{_EACH} advance(state, state.sides[state.at[i]]);
              if (apart) {{ tell(turn); }} else {{ publish(state, notice); }}""", seen=True),
    fault("a counter is stored without a release",
          "execute.h", _PUBLISH,
          f"store<Word>(reinterpret_cast<char*>({_COUNTER}), ++state.published[end]);"),
    fault("a counter is read without an acquire",
          "execute.h", "«load_acquire(counter)»", "load_relaxed(counter)"),
    fault("one free slot too many is assumed",
          "execute.h", "«side.seen_head + room >= position + 1»", "side.seen_head + room >= position", seen=None),
    fault("a message too few is waited for",
          "execute.h", "«load_relaxed(counter) + room < position + 1»", "load_relaxed(counter) + room < position",
          seen=True),
    fault("the job is written behind the barrier",
          "execute.h", "«if (thread_index() == 0) write_job<Wire>(state, slice, k, order);»", ";",
          "execute.h", _READY, """[&] { const bool late = any_of_workers(Wire::kNumber, !ready);
              if (thread_index() == 0) { write_job<Wire>(state, slice, k, order); } return late; }()"""),
    fault("the job is read behind the last barrier",
          "execute.h", "i < «receives»; i += step) {", "state.job.receives"),
    fault("each thread cuts a slice that all share",
          "block.h", "«thread_index() != n * kWarp % threads()»", "n >= kMostSlices"),
    fault("of a list of ends each is the first",
          "block.h", "«ends.listed[i]»", "ends.listed[0]", seen=True),
    fault("a channel ends a tick early",
          "block.h", "more = more || «k + 1 < chunks»", "k + 2 < chunks", seen=True),
    fault("a channel's second row is never carried out",
          "block.h", "if (k < 0 || «k >= chunks») continue;", "k >= chunks || n == 1", seen=True),
    fault("the stride of a warp in place of a block's",
          "fold.h", "«first += load_shared(state.folding) * kBatch»", "first += kWarp * kBatch"),
    fault("units of a batch lie a block apart in place of a warp",
          "fold.h", "«first + n * kWarp»", "first + n * threads()"),
    fault("the last unit is left out",
          "fold.h", "«unit(n) < state.job.units»", "unit(n) + 1 < state.job.units", seen=True),
    fault("lanes without a unit return before the vote",
          "fold.h", "«if (!Units<Wire>::kFlagged || operand == state.job.own_operand_index) return true;»",
          "if (!Units<Wire>::kFlagged || operand == state.job.own_operand_index || !live(0)) return true;"),
    fault("each lane goes by its own flag",
          "fold.h", _VOTE, "ready"),
    fault("one ready lane is enough for its warp",
          "fold.h", _VOTE, "Units<Wire>::warp_any(ready)"),
    fault("a lane gives up without its warp",
          "fold.h", "«Units<Wire>::warp_any(should_give_up(state, patience, receive, false))»",
          "should_give_up(state, patience, receive, false)"),
    fault("lines are not loaded again behind the vote",
          "fold.h", "«if constexpr (Units<Wire>::kReloads) look(receive, raw);»", ";", within=20),
    fault("lines are written by lanes that have not converged",
          "fold.h", f"state.position[send] : 0;\n      {_SYNC}", ";"),
    fault("lines are read by lanes that have not converged",
          "fold.h", f"bool ready = true;\n    {_SYNC}", ";"),
    fault("lanes behind the last line leave their warp",
          "wires.h", "«(units + kWarp - 1) / kWarp * kWarp»", "units"),
    fault("LL takes the flag of any message",
          "wires.h", _LL_READ, "(raw.low & raw.high) >> 63 != 0", seen=True),
    fault("LL looks at one of two flags",
          "wires.h", _LL_READ, "raw.low >> 32 == wanted", seen=True),
    fault("LL128's flag is in another lane's hands",
          "wires.h", _LL128_WRITE,
          "store_halves(message + unit * 16, {data.low, in_line(unit) == 6 ? flag(position) : data.high});"),
    fault("LL128's lines are plain stores",
          "wires.h", _LL128_WRITE,
          "store_pair(message + unit * 16, {data.low, has_flag(unit) ? flag(position) : data.high});"),
    fault("LL128 does not look at its flag",
          "wires.h", "«!has_flag(unit) || raw.high == flag(position)»", "unit % 8 < 8"),
    fault("LL128's lines lie where LL's do",
          "state.h", _LINES, "2 * static_cast<Word>(state.part)", seen=True),
    fault("LL128's lines lie behind LL's of as many parts as the launch has",
          "state.h", _LINES, "static_cast<Word>(state.part) + (wire == LL128::kNumber ? state.parts : 0)", seen=True),
    fault("a part's tail lies by how many parts the launch has",
          "state.h", "of.tail + «state.part * kStride»", "(state.parts - 1 - state.part) * kStride", seen=True),
    fault("only messages of LL wipe its lines",
          "execute.h", "«state.position[i] % kEvery >= state.slots»",
          "state.position[i] % kEvery >= state.slots || state.wire != LL::kNumber", seen=True),
    fault("a relaxed head is stored before the flags have been seen",
          "execute.h", _READY, f"""[&] {{ if (any_of_workers(Wire::kNumber, !ready)) return true;
              {_EACH.replace("ends", _ENDS)} {{ {_SIDE}
              if (i < order.receives && !Units<Wire>::kOrderedHead) store_relaxed(side.head, side.position + 1); }}
              return false; }}()""",
          seen=None),
    fault("no barrier behind the ends that are opened",
          "state.h", "open_end(state, end, connections[end]);\n  «barrier();»", ";"),
    fault("positions are stored without a barrier",
          "state.h", "}\n  «barrier();»\n  for (uint32_t end = thread_index(); end < state.ends;", ";"),
    fault("the publisher does not wait to be told",
          "execute.h", _TOLD, ";",
          "execute.h", _TELL, ";"),
    fault("the publisher is told before the workers have met",
          "execute.h", "«any_of_workers(Wire::kNumber, !moved)»",
          """[&] { if (apart) { tell(turn); } return any_of_workers(Wire::kNumber, !moved); }()""",
          "execute.h", _TELLS,
          "if (!apart) { publish(state, notice); }"),
    fault("a notice is written without waiting until it is free",
          "execute.h", _FREE, ";",
          "execute.h", _FREED, ";",
          "state.h", _OPENED, ";",
          "state.h", _CLOSED, ";"),
    fault("notices are not free at first",
          "state.h", _OPENED, ";"),
    fault("close() leaves arrivals at a barrier",
          "state.h", _CLOSED, ";"),
    fault("the workers meet the publisher, too",
          "state.h", "«workers(wire)», yes)", "threads()"),
    fault("a worker that gives up does not tell the publisher",
          "execute.h", "«if (apart) tell(turn);»", ";"),
    fault("the publisher continues after the workers have given up",
          "execute.h", "«notice.stops == 0»", "notice.stops < 2"),
    fault("the publisher folds, too",
          "state.h", "state.folding = «workers(wire)»", "threads()"),
    fault("positions have advanced when a worker gives up",
          "execute.h", f"«{_EACH} step_back(state, state.sides[state.at[i]]);»", ";", seen=True),
)
# fmt: on


def planted_headers(directory: Path) -> Path:
    """A copy of the headers in which ``blink_planted`` selects the fault, so one compilation is enough."""
    shutil.copytree(DEVICE / "blink", directory / "blink")
    changes: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for number, one in enumerate(FAULTS, 1):
        for file, place, new in one.edits:
            changes.setdefault((file, place), []).append((number, new))
    for (file, place), choices in changes.items():
        before, old, after = re.split("[«»]", place)
        text = old
        for number, new in choices:
            if old.endswith((";", "}")):
                text = f"if (::blink_planted == {number}) {{ {new} }} else {{ {text} }}"
            else:
                text = f"(::blink_planted == {number} ? ({new}) : ({text}))"
        path = directory / "blink" / file
        content = path.read_text(encoding="utf-8")
        assert content.count(before + old + after) == 1, f"a fault has no place in {file} any more: {place}"
        path.write_text(content.replace(before + old + after, before + text + after), encoding="utf-8")
    with (directory / "blink" / "target.h").open("a", encoding="utf-8") as target:
        target.write("\nextern int blink_planted;\n")
    return directory


def built(directory: Path, flags: Sequence[str], *linked: str | Path) -> Path:
    """The compiled program with the tests: one object, linked with ``linked``."""
    headers, program = planted_headers(directory / "headers"), directory / "faults"
    assert CXX is not None
    include = [f"-I{path}" for path in (headers, DIRECTORY, DEVICE, NATIVE_TESTS, EMULATE.parent)]
    common = [*CXX.split(), "-std=c++17", "-O1", "-ffp-contract=off", *include]
    unit = directory / "faults.o"
    subprocess.run([*common, *flags, "-c", HERE / "planted_faults.cpp", "-o", unit], check=True)
    subprocess.run([*common, unit, *linked, "-pthread", "-o", program], check=True)
    return program


def noticed(program: Path, number: int, launches: int, deadline_s: float) -> tuple[bool, str]:
    """True if the tests failed, crashed or did not end with a fault, and their output."""
    try:
        ended = subprocess.run(
            [*fixed_addresses(), program, str(number), str(launches)],
            capture_output=True,
            text=True,
            timeout=deadline_s,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return True, "it never ends"
    return ended.returncode != 0, ended.stdout


@pytest.mark.timeout(600)
def test_all_are_noticed_on_emulated_blocks(tmp_path: Path) -> None:
    library = machine_library()
    program = built(tmp_path, ("-DBLINK_EMULATED", "-fsanitize=thread"), library, f"-Wl,-rpath,{library.parent}")
    failed, output = noticed(program, 0, 60, 100)
    assert not failed, output
    missed = [one.name for number, one in enumerate(FAULTS, 1) if not noticed(program, number, one.within, 60)[0]]
    assert missed == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_thread_sanitizer_notices_missing_order(tmp_path: Path) -> None:
    """Every emulated thread is a thread of this CPU, so missing barriers, releases and acquires are data races."""
    flags = ("-DBLINK_EMULATED", "-DBLINK_REAL_THREADS", "-fsanitize=thread", "-g1", "-Wno-tsan")
    program = built(tmp_path, flags, *flags, EMULATE / "threads.cpp")
    assert not noticed(program, 0, 8, 300)[0]
    missed = []
    for number, one in enumerate(FAULTS, 1):
        if one.name.startswith("no barrier") or " without a release" in one.name or " without an acquire" in one.name:
            missed += [] if noticed(program, number, 20, 300)[0] else [one.name]
    assert missed == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_faults_that_blocks_of_one_thread_notice(tmp_path: Path) -> None:
    named = ('-DBLINK_VERSION="test"', f"-DBLINK_ABI={abi()}u")
    program = built(tmp_path, (), *named, *sorted((DEVICE / "host").glob("*.cpp")))
    assert not noticed(program, 0, 100, 100)[0]
    for number, one in enumerate(FAULTS, 1):
        if one.without_threads is not None:
            assert noticed(program, number, 100, 60)[0] == one.without_threads, one.name
