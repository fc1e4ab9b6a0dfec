"""The least and the longest time of a simulation: two bounds that share no code with the kernel."""

from __future__ import annotations

from collections.abc import Sequence

from blinkccl.simulate.workload import Workload


def least_s(workload: Workload) -> float:
    """No run is shorter: the α–β bound.

    The larger of what the fullest link takes for its bytes, and what the longest chain of hops takes for one chunk on
    links of its own: the smallest chunk that passes there.
    """
    by_link = (workload.link_bytes / workload.rates).max(initial=0.0)
    return max(float(by_link), _longest_chain_s(workload))


def serial_s(workload: Workload) -> float:
    """No run is longer: all transfers and executions one after the other, each on links of its own."""
    actors, hops = workload.actors, workload.hops
    total = float(actors.start_s.max(initial=0.0))
    for hop, tail in enumerate(hops.tail.tolist()):
        fixed_s = float(hops.latency_s[hop] + hops.signal_s[hop])
        per_byte = 1.0 / _slowest(workload, hop)
        total += int(actors.chunks[tail]) * fixed_s + float(workload.hop_bytes[hop]) * per_byte
    for actor, stream in enumerate(actors.stream.tolist()):
        chunks = int(actors.chunks[actor])
        if stream >= 0 and chunks:
            moved = (chunks - 1) * float(actors.bytes[actor]) + float(actors.last_bytes[actor])
            total += chunks * float(actors.launch_s[actor]) + moved * float(actors.pace_s_per_byte[actor])
    return total


def _slowest(workload: Workload, hop: int) -> float:
    """Bytes per second of a hop's slowest link."""
    first, last = workload.hops.path_of[hop], workload.hops.path_of[hop + 1]
    return float(workload.rates[workload.hops.path[first:last]].min(initial=float("inf")))


def _longest_chain_s(workload: Workload) -> float:
    """The longest way through actors and hops, with a chunk of the smallest size on each."""
    actors, hops = workload.actors, workload.hops
    size = [min(a, b) for a, b in zip(actors.bytes.tolist(), actors.last_bytes.tolist(), strict=True)]
    chunks = actors.chunks.tolist()
    ready_s = actors.start_s.tolist()
    following: list[list[int]] = [[] for _ in chunks]
    waits = [0] * len(chunks)
    for hop, (tail, head) in enumerate(zip(hops.tail.tolist(), hops.head.tolist(), strict=True)):
        following[tail].append(hop)
        waits[head] += 1
    last = 0.0
    for actor in _in_order(workload, following, waits):
        if chunks[actor] == 0:
            continue
        done_s = ready_s[actor]
        if actors.stream[actor] >= 0:
            done_s += float(actors.launch_s[actor]) + size[actor] * float(actors.pace_s_per_byte[actor])
        last = max(last, done_s)
        for hop in following[actor]:
            moved_s = size[actor] / _slowest(workload, hop)
            there_s = done_s + float(hops.latency_s[hop]) + moved_s + float(hops.signal_s[hop])
            head = int(hops.head[hop])
            ready_s[head] = max(ready_s[head], there_s)
    return last


def _in_order(workload: Workload, following: Sequence[Sequence[int]], waits: list[int]) -> list[int]:
    """Actors, senders before receivers; those on a cycle are left out, which only weakens the bound."""
    order = [actor for actor, count in enumerate(waits) if count == 0]
    for actor in order:
        for hop in following[actor]:
            head = int(workload.hops.head[hop])
            waits[head] -= 1
            if waits[head] == 0:
                order.append(head)
    return order
