"""Which roles may be one firing? Those that send the same own chunk in the same tick.

In a one-shot AllReduce each rank sends its data to every other, a tree each. As roles these are as many firings; as
one they read the data once, and a block meets at two barriers instead of two per receiver.
"""

from __future__ import annotations

from dataclasses import replace

from blinkccl.schedule.program import Program, Role


def merged(program: Program, most_ends: int) -> tuple[Program, tuple[tuple[int, ...], ...]]:
    """``program`` with such roles as one, and for every role of the result the shares that it serves.

    Roles are merged that follow each other on their rank in their channel, receive nothing and have one slice and one
    offset; no firing gets more than ``most_ends`` sends. The result does the same, but a firing that sends to more
    ranks waits for more slots: whoever takes it must see that it is live.
    """
    roles: list[Role] = []
    shares: list[list[int]] = []
    last: dict[tuple[int, int], int] = {}
    for role in program.roles:
        lane = role.rank, role.channel
        before = last.get(lane)
        if before is not None and _fit(roles[before], role, most_ends):
            into = roles[before]
            roles[before] = replace(into, keeps=into.keeps or role.keeps, sends=into.sends + role.sends)
            shares[before].append(role.share)
        else:
            last[lane] = len(roles)
            roles.append(role)
            shares.append([role.share])
    return replace(program, roles=tuple(roles)), tuple(map(tuple, shares))


def _fit(first: Role, second: Role, most_ends: int) -> bool:
    return (
        not (first.receives or second.receives)
        and (first.slice, first.offset) == (second.slice, second.offset)
        and len(first.sends) + len(second.sends) <= most_ends
        and not any(queue in first.sends for queue in second.sends)
    )
