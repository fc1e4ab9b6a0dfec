"""A live job as text: every rank, its wait, and the ranks that all others wait for."""

from __future__ import annotations

from blinkccl.runtime.dump import GroupState, RankState
from blinkccl.show.text import Paint, columns, count, fit, ids, plain

_HEADER = ("rank", "process", "state", "since", "peer", "channel", "chunk", "call")
_LEFT = (2, 7)
_STYLES = {"gone": "bold red", "stopped": "bold yellow", "absent": "yellow", "waiting": "dim", "remote": "dim"}


def job_text(pid: int, groups: list[GroupState], paint: Paint = plain, width: int | None = None) -> str:
    """The groups of process ``pid``, each as a table and some sentences."""
    return "\n\n".join(_group_text(pid, group, paint, width) for group in groups) + "\n"


def _group_text(pid: int, group: GroupState, paint: Paint, width: int | None) -> str:
    head = f"Group of {count(group.size, 'rank')} with process {pid} (segment {group.segment})"
    lines = [fit(head, width), ""]

    def look(row: int, _: str) -> str:
        return _STYLES.get(group.ranks[row - 1].state, "") if row else ""

    lines += [*columns(_HEADER, [_row(rank) for rank in group.ranks], _LEFT, width, look=look, paint=paint), ""]
    sentences = [f"rank {rank.rank} waits {rank.awaits}" for rank in group.ranks if rank.awaits]
    sentences += _conclusions(group)
    return "\n".join(lines + [fit(sentence, width) for sentence in sentences])


def _row(rank: RankState) -> list[str]:
    since = "" if rank.waiting_s is None else f"{rank.waiting_s:.1f} s"
    call = f"{rank.calls}: {rank.call}" if rank.call else ""
    return [
        str(rank.rank),
        str(rank.pid or ""),
        rank.state,
        since,
        *("" if value is None else str(value) for value in (rank.peer, rank.channel, rank.chunk)),
        call,
    ]


def _conclusions(group: GroupState) -> list[str]:
    """Sentences on the ranks that cause the waits."""
    if group.failure is not None:
        return [f"This group has ended: {group.failure}"]
    sentences = []
    for rank, by in group.awaited().items():
        end = group.ranks[rank]
        waiters = f"{'rank' if len(by) == 1 else 'ranks'} {ids(by)} {'waits' if len(by) == 1 else 'wait'}"
        if end.peer is not None:
            sentences.append(f"Cause: {waiters} in a cycle that contains rank {rank}")
        else:
            process = f" (process {end.pid})" if end.pid else ""
            sentences.append(f"Cause: {waiters} for rank {rank}{process}: {_doing(end)}")
    return sentences or ["No rank waits"]


def _doing(rank: RankState) -> str:
    calls = f"after call {rank.calls}" if rank.calls else "before its first call"
    match rank.state:
        case "stopped":
            return "a signal or a debugger stopped it; kill -CONT resumes it"
        case "gone":
            return "its process has ended"
        case "left":
            return "it has closed the group"
        case "absent":
            return "it has not joined yet"
        case "remote":
            return "it is on another host; run blink dump there"
        case "between calls":
            return f"it is in the program's own code, {calls}; py-spy dump --pid {rank.pid} shows the line"
        case _:
            return f"it is running call {rank.calls}"
