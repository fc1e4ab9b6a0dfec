"""Jobs that hang: the rank that is missing, behind, or in another call than the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blinkccl.apps.doctor.evidence import Case, MachineRead, MeasuredCall, RankReport, Started, UnnamedCall
from blinkccl.apps.doctor.finding import Finding, finding
from blinkccl.apps.doctor.rules.servers import server_of
from blinkccl.errors import ranks_text
from blinkccl.show.text import count
from blinkccl.topology.limits import shortened

_GONE = {
    "dead": "is dead", "stopped": "is stopped", "failed": "has failed", "missing": "does not answer",
    "unresponsive": "does not answer",
}  # fmt: skip
_PLURAL = {"is": "are", "has": "have", "does": "do"}


def stands_still(case: Case) -> Iterator[Finding]:
    """The first explanation for each group; then benchmarks that printed no row."""
    groups: dict[str, list[RankReport]] = {}
    for state in case.of(RankReport):
        groups.setdefault(state.group, []).append(state)
    groups = {group: states for group, states in groups.items() if not _ended(case, states)}
    for group, states in groups.items():
        yield from _group(group, states)
    if not groups:
        yield from (_no_result(case, started) for started in case.of(Started))


def _ended(case: Case, states: Sequence[RankReport]) -> bool:
    """True if reports of a setup alone are followed by results in the same file; a log may hold one rank's lines."""
    if any(state.state not in ("", "initialising") or state.calls or state.doing for state in states):
        return False
    last = {state.place.source: state.place.line or 0 for state in states}
    rows = (row.place for row in (*case.of(MeasuredCall), *case.of(UnnamedCall)))
    return any((place.line or 0) > last.get(place.source, 1 << 62) for place in rows)


def _group(group: str, states: Sequence[RankReport]) -> Iterator[Finding]:
    members = max((state.members for state in states), key=len, default=())
    gone = [state for state in states if state.state in _GONE]
    reporting = {state.rank for state in states}
    unheard = [rank for rank in members if rank not in reporting] if min(reporting) >= 0 else []
    starting = [state for state in states if state.state == "initialising"]
    if gone:
        yield _missing(group, [s.rank for s in gone], _GONE[gone[0].state], gone, states)
    elif starting or (unheard and all(not s.calls and not s.state for s in states)):
        ranks = unheard or [s.rank for s in starting]
        what = "has not joined" if unheard else "has not ended the setup"
        yield _missing(group, ranks, what, starting, states)
    elif (behind := _behind(states)) is not None:
        yield _rank_behind(group, behind, states)
    elif unheard and any(s.doing or s.state for s in states):
        yield _missing(group, unheard, "has not reported", [], states)
    elif (odd := _differs(states)) is not None:
        yield _call_mismatch(group, odd, states)
    elif any(s.state == "timed out" for s in states):
        yield _stuck(group, states)


def _missing(
    group: str, ranks: Sequence[int], what: str, own: Sequence[RankReport], states: Sequence[RankReport]
) -> Finding:
    waiting = len({s.rank for s in states if s.rank not in ranks})
    those = ranks_text(sorted(ranks))
    return finding(f"""
        error: {those} of {group} {_verb(what, len(ranks))}  [rank-missing]
        bound   all ranks in the same call
        got     {count(waiting, "other rank")} {"waits" if waiting == 1 else "wait"}{_where(own)}
        cause   a collective ends only after all ranks have called it
        try     look at the output and the host of {those}: an error before the hang, out of memory, a lost GPU (dmesg |
                grep Xid)
        """).at(own or states[:2])


def _verb(what: str, ranks: int) -> str:
    """``what`` with its verb in the form for this number of ranks; 0: number unknown."""
    verb, space, rest = what.partition(" ")
    return what if ranks == 1 else f"{_PLURAL[verb]}{space}{rest}"


def _where(states: Sequence[RankReport]) -> str:
    return next((f"; it stands at {state.line}" for state in states if state.line), "")


def _behind(states: Sequence[RankReport]) -> list[RankReport] | None:
    """The ranks that have begun fewer calls of some kind than the others; None if the counts are equal."""
    for name in dict.fromkeys(name for state in states for name, _ in state.calls):
        counts = [(dict(state.calls)[name], state) for state in states if name in dict(state.calls)]
        low = min(count for count, _ in counts)
        if any(count > low for count, _ in counts):
            return [state for count, state in counts if count == low]
    done = [(state.done, state) for state in states if state.done is not None]
    least = min((count for count, _ in done), default=0)
    if any(count > least for count, _ in done) and any(state.state for _, state in done):
        return [state for count, state in done if count == least]
    return None


def _rank_behind(group: str, behind: Sequence[RankReport], states: Sequence[RankReport]) -> Finding:
    """Ranks with fewer calls than the others; if a source lists only the others, the number of them."""
    listed = sorted(state.rank for state in behind if state.rank >= 0)
    others = sorted(state.rank for state in states if state not in behind and state.rank >= 0)
    those = ranks_text(listed) if listed else f"{-behind[0].rank} ranks (all but {ranks_text(others)})"
    begun = _verb("has begun", len(listed))
    name = next((name for name, _ in behind[0].calls if name), "")
    low = max((count for key, count in behind[0].calls if key == name), default=0)
    most = max((count for s in states for key, count in s.calls if key == name), default=low)
    ahead = next((f": {shortened(s.doing, 80)}" for s in states if s not in behind and s.doing), "")
    return finding(f"""
        error: {those} of {group} {begun} fewer calls than the others  [rank-behind]
        bound   {most} {name or "call"}s on every rank
        got     {low} on {those}{_where(behind)}
        cause   the others wait in a call that these have not reached{ahead}; a branch that not all ranks take, an
                uneven number of batches, or a rank that is slow or stuck elsewhere
        try     py-spy dump on {those}, or blink dump PID for jobs of Blink; make every rank take the same steps
                (drop_last=True, join())
        """).at(behind[:4])


def _differs(states: Sequence[RankReport]) -> list[RankReport] | None:
    """The smallest set of ranks in another call than the rest, at the same number."""
    doing: dict[str, list[RankReport]] = {}
    for state in states:
        if state.doing:
            doing.setdefault(state.doing, []).append(state)
    return min(doing.values(), key=lambda those: (len(those), those[0].rank)) if len(doing) > 1 else None


def _call_mismatch(group: str, odd: Sequence[RankReport], states: Sequence[RankReport]) -> Finding:
    """Ranks in another call than the others at the same number."""
    those = ranks_text(sorted(state.rank for state in odd))
    other = next(state.doing for state in states if state.doing and state.doing != odd[0].doing)
    line = f" at {odd[0].line}" if odd[0].line else ""
    return finding(f"""
        error: {those} of {group} {_verb("is", len(odd))} in another call than the others  [call-mismatch]
        bound   {shortened(other, 80)} on every rank
        got     {shortened(odd[0].doing, 80)}{line}
        cause   ranks match collectives by their order: this call never completes, or mixes up data
        try     compare the call of {those} there with the others; TORCH_DISTRIBUTED_DEBUG=DETAIL stops at the first
                difference
        """).at(odd[:4])


def _stuck(group: str, states: Sequence[RankReport]) -> Finding:
    doing = next((s.doing for s in states if s.doing), "a call")
    return finding(f"""
        error: all reporting ranks of {group} are in the same call, and it does not end  [stuck-in-call]
        bound   all ranks in the call: it takes milliseconds
        got     {len(states)} ranks in {shortened(doing, 80)} until the time-out
        cause   no rank is missing by its count of calls (RAS says OK of this too): a link, a NIC or a GPU does not move
                data, or a rank without a report never joined
        try     dmesg | grep -E 'Xid|NVRM|mlx5' on all hosts; TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and give the dumps of
                all ranks to blink doctor
        """).at(states[:2])


def _no_result(case: Case, started: Started) -> Finding:
    why = f"P2P between {started.gpu or 'these GPUs'} may be offered and not work; then the first transfer hangs"
    attempt = """NCCL_P2P_DISABLE=1 with the same command: if that runs, P2P is at fault (IOMMU, ACS, a driver for cards
        without P2P)"""
    server = case.last(MachineRead) or server_of(started.place, started.gpu, started.ranks)
    if server is not None and server.switched:
        why = "a rank has failed or waits for another; NVLinks through an NVSwitch need a fabric manager that runs"
        attempt = """nvidia-smi -q | grep -A 2 Fabric must show Completed and Success; systemctl status
        nvidia-fabricmanager; dmesg | grep -E 'Xid|SXid'"""
    return finding(f"""
        error: the benchmark listed its {started.ranks} ranks and printed no result  [no-result]
        bound   a row per size
        got     none: it hung, or the log was cut off
        cause   {why}
        try     {attempt}; NCCL_DEBUG=INFO shows the last step
        """).at(started)


def nccl_warning(case: Case) -> Iterator[Finding]:
    """NCCL's warnings; an error if the run did not finish."""
    warnings = [one for one in case.failures("warning") if "XML Import Channel" not in one.text]
    if warnings:
        stands = any(isinstance(piece, RankReport | Started) for piece in case.pieces) and not case.of(MeasuredCall)
        yield finding(f"""
            {"error" if stands else "note"}: NCCL warns: {shortened(warnings[0].text, 120)}  [nccl-warning]
            bound   no warnings
            got     {len(warnings)} of them
            cause   the first is usually the reason for the others
            try     look for the text in NCCL's issues; NCCL_DEBUG=INFO prints the calls that led to it
            """).at(warnings[:3])


RULES = (stands_still, nccl_warning)
