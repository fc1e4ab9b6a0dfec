"""A job that stands still: which rank is missing, behind, or in another call than the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blinkccl.doctor.evidence import Case, Failure, Measured, RankState, Started
from blinkccl.doctor.finding import Finding, places
from blinkccl.errors import ranks_text
from blinkccl.topology.limits import shortened

_GONE = ("dead", "missing", "unresponsive", "stopped", "failed")


def findings(case: Case) -> Iterator[Finding]:
    """Group by group, the first that explains it; then benchmarks that never printed a row."""
    groups: dict[str, list[RankState]] = {}
    for state in case.of(RankState):
        groups.setdefault(state.group, []).append(state)
    for group, states in groups.items():
        yield from _group(group, states)
    if not groups:
        yield from (_no_row(started) for started in case.of(Started))
    yield from _warned(case, bool(groups) or bool(case.of(Started)))


def _group(group: str, states: Sequence[RankState]) -> Iterator[Finding]:
    members = max((state.members for state in states), key=len, default=())
    gone = [state for state in states if state.state in _GONE]
    told = {state.rank for state in states}
    unheard = [rank for rank in members if rank not in told] if min(told) >= 0 else []
    starting = [state for state in states if state.state == "initialising"]
    if gone:
        yield _finding("rank-missing", group, [s.rank for s in gone], _words(gone[0].state), gone, states)
    elif starting or (unheard and all(not s.calls and not s.state for s in states)):
        late = [s.rank for s in starting]
        why = "has begun to set up its communicator and waits"
        yield _finding("rank-missing", group, unheard or late, "has not come" if unheard else why, starting, states)
    elif (behind := _behind(states)) is not None:
        yield behind_finding(group, behind, states)
    elif unheard and any(s.doing or s.state for s in states):
        yield _finding("rank-missing", group, unheard, "is not heard of", [], states)
    elif (odd := _differs(states)) is not None:
        yield odd_finding(group, odd, states)
    elif any(s.state == "timed out" for s in states):
        yield _stuck(group, states)


def _words(state: str) -> str:
    return {"dead": "is dead", "stopped": "is stopped", "failed": "has failed"}.get(state, "does not answer")


def _plural(what: str) -> str:
    verb, _, rest = what.partition(" ")
    return f"{ {'is': 'are', 'has': 'have', 'does': 'do'}[verb] } {rest}"


def _finding(
    cause: str, group: str, ranks: Sequence[int], what: str, own: Sequence[RankState], states: Sequence[RankState]
) -> Finding:
    where = next((f"; it stands at {s.line}" for s in own if s.line), "")
    waiting = len({s.rank for s in states if s.rank not in ranks})
    those = ranks_text(sorted(ranks))
    return Finding(
        cause,
        "error",
        f"{those} of {group} {what if len(ranks) == 1 else _plural(what)}",
        "all ranks in the same call",
        f"{waiting} other ranks wait{where}",
        "a collective ends when all ranks have come; the others wait for this one",
        f"look at the output and the host of {those}: an error before the hang, out of memory, a lost GPU (dmesg | "
        "grep Xid)",
        places(own or states[:2]),
    )


def _behind(states: Sequence[RankState]) -> list[RankState] | None:
    """Those that have begun fewer calls of some kind than the others; None where all have begun as many."""
    names = dict.fromkeys(name for state in states for name, _ in state.calls)
    for name in names:
        counts = [(dict(state.calls)[name], state) for state in states if name in dict(state.calls)]
        most = max(count for count, _ in counts)
        low = min(count for count, _ in counts)
        if low < most:
            return [state for count, state in counts if count == low]
    done = [state for state in states if state.done is not None]
    least = min((state.done for state in done if state.done is not None), default=None)
    if done and any(state.done != least for state in done) and any(state.state for state in done):
        return [state for state in done if state.done == least]
    return None


def behind_finding(group: str, behind: Sequence[RankState], states: Sequence[RankState]) -> Finding:
    """Ranks that are not where the others are; where a source lists the others only, how many they are."""
    listed = [state.rank for state in behind if state.rank >= 0]
    those = ranks_text(sorted(listed)) if listed else f"{-behind[0].rank} ranks (all but {_others(behind, states)})"
    name = next((name for name, _ in behind[0].calls if name), "")
    low = max((count for key, count in behind[0].calls if key == name), default=0)
    most = max((count for s in states for key, count in s.calls if key == name), default=low)
    line = next((f"; it stands at {s.line}" for s in behind if s.line), "")
    ahead = next((s.doing for s in states if s not in behind and s.doing), "")
    return Finding(
        "rank-behind",
        "error",
        f"{those} of {group} {'has' if len(listed) == 1 else 'have'} begun fewer calls than the others",
        f"{most} {name or 'call'}s on every rank",
        f"{low} on {those}{line}",
        "the others wait in a call that these have not come to"
        + (f": {shortened(ahead, 80)}" if ahead else "")
        + "; a branch that not all ranks take, an uneven number of batches, or a rank that is slow or stuck elsewhere",
        f"py-spy dump on {those}, or blink dump PID for jobs of Blink; make every rank take the same steps "
        "(drop_last=True, join())",
        places(behind[:4]),
    )


def _others(behind: Sequence[RankState], states: Sequence[RankState]) -> str:
    return ranks_text(sorted(state.rank for state in states if state not in behind and state.rank >= 0))


def _differs(states: Sequence[RankState]) -> list[RankState] | None:
    """Those in another call than most, at the same number."""
    doing: dict[str, list[RankState]] = {}
    for state in states:
        if state.doing:
            doing.setdefault(state.doing, []).append(state)
    if len(doing) < 2:
        return None
    return min(doing.values(), key=lambda those: (len(those), those[0].rank))


def odd_finding(group: str, odd: Sequence[RankState], states: Sequence[RankState]) -> Finding:
    """Ranks that came to the same number of calls with another call."""
    those = ranks_text(sorted(state.rank for state in odd))
    other = next(state.doing for state in states if state.doing and state.doing != odd[0].doing)
    line = f" at {odd[0].line}" if odd[0].line else ""
    return Finding(
        "call-mismatch",
        "error",
        f"{those} of {group} {'is' if len(odd) == 1 else 'are'} in another call than the others",
        f"{shortened(other, 80)} on every rank",
        f"{shortened(odd[0].doing, 80)}{line}",
        "collectives meet by their order: this call will never find its partners, or mixes up data",
        f"compare what {those} calls there with the others; TORCH_DISTRIBUTED_DEBUG=DETAIL stops at the first "
        "difference",
        places(odd[:4]),
    )


def _stuck(group: str, states: Sequence[RankState]) -> Finding:
    doing = next((s.doing for s in states if s.doing), "a call")
    return Finding(
        "stuck-in-call",
        "error",
        f"all ranks of {group} that are heard of are in the same call, and it does not end",
        "all ranks in the call: it takes milliseconds",
        f"{len(states)} ranks in {shortened(doing, 80)} until the time-out",
        "no rank is missing by its count of calls (RAS says OK of this too): a link, a NIC or a GPU does not move "
        "data, or a rank that is not heard of never came",
        "dmesg | grep -E 'Xid|NVRM|mlx5' on all hosts; TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and give the dumps of all "
        "ranks to blink doctor",
        places(states[:2]),
    )


def _warned(case: Case, stands: bool) -> Iterator[Finding]:
    """What NCCL warned of, in its own words: it says why where a run did not come to its end."""
    warnings = [failure for failure in case.of(Failure) if failure.kind == "warning"]
    if warnings:
        yield Finding(
            "nccl-warning",
            "error" if stands and not case.of(Measured) else "note",
            f"NCCL warns: {shortened(warnings[0].text, 120)}",
            "no warnings",
            f"{len(warnings)} of them",
            "the first is mostly the reason of the others",
            "look for the text in NCCL's issues; NCCL_DEBUG=INFO prints the calls that led to it",
            places(warnings[:3]),
        )


def _no_row(started: Started) -> Finding:
    return Finding(
        "no-result",
        "error",
        f"the benchmark listed its {started.ranks} ranks and printed no result",
        "a row per size",
        "none: it hung, or the log was cut off",
        f"between {started.gpu or 'these GPUs'} P2P may be offered and not work: the first transfer then never ends",
        "NCCL_P2P_DISABLE=1 with the same command: if that runs, P2P is at fault (IOMMU, ACS, a driver for cards that "
        "have none); NCCL_DEBUG=INFO shows how far it came",
        places(started),
    )
