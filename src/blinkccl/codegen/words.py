"""What are things called in generated code? GPUs by vertex id, shares and slices by their place in the collective."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blinkccl.codegen.lanes import Firing, Lane
from blinkccl.schedule.program import Program


class Words:
    """The names of one program's things."""

    def __init__(self, program: Program) -> None:
        self._program = program
        items = program.collective.items()
        #: Whether every item goes from one rank to one other, so that shares are paths and no trees.
        self.paths = not any(len(item.contributions) > 1 or len(item.destinations) > 1 for item in items)
        self._shares: dict[int, list[int]] = {}
        for role in program.roles:
            carried = self._shares.setdefault(role.slice, [])
            if role.share not in carried:
                carried.append(role.share)

    def gpu(self, rank: int) -> str:
        """``GPU 5``."""
        return f"GPU {self._program.ranks[rank]}"

    def share(self, share: int) -> str:
        """``tree 0`` or ``path 0``."""
        return f"{'path' if self.paths else 'tree'} {share}"

    def slice(self, index: int) -> str:
        """The variable of a slice: ``tree0`` where one share carries it, ``slice0`` where several do."""
        carried = self._shares[index]
        return self.share(carried[0]).replace(" ", "") if len(carried) == 1 else f"slice{index}"

    def ends(self, lane: Lane) -> tuple[dict[int, str], dict[int, str]]:
        """Queue → name, of those that ``lane`` receives from and of those that it sends to.

        ``from_gpu4``, ``to_gpu1``; a second connection with the same GPU is ``from_gpu4_b``.
        """
        queues, ranks = self._program.queues, self._program.ranks
        received = _named((queue, f"from_gpu{ranks[queues[queue].src]}") for queue in lane.receives)
        return received, _named((queue, f"to_gpu{ranks[queues[queue].dst]}") for queue in lane.sends)

    def deed(self, firing: Firing) -> str:
        """What a firing does: ``tree 0, root: combines GPU 1's, its own and GPU 6's, keeps it, sends it to …``."""
        role = firing.role
        where = self.share(firing.shares[0]) + (", root" if role.stage == "root" and not self.paths else "")
        if len(firing.shares) > 1:
            where = f"{self.share(0)[:4]}s {listed(list(map(str, firing.shares)))}"
        sources = [self.gpu(self._program.queues[queue].src) for queue in role.receives]
        receivers = listed([self.gpu(self._program.queues[queue].dst) for queue in role.sends])
        if len(sources) + role.contributes > 1:
            values = [f"{source}'s" for source in sources]
            if role.contributes:
                values.insert(role.own_operand_index, "its own")
            done = ["keeps the result"] if role.keeps else []
            done += [f"sends {'it' if done else 'the result'} to {receivers}"] if receivers else []
            return f"{where}: {listed([f'combines {listed(values)}', *done])}"
        value = f"what {sources[0]} sends" if sources else "its own"
        if role.keeps:
            return f"{where}: keeps {value}" + (f" and sends it to {receivers}" if receivers else "")
        if not receivers:
            return f"{where}: takes {value}"
        return f"{where}: passes {value} on to {receivers}" if sources else f"{where}: sends {value} to {receivers}"


def listed(items: Sequence[str]) -> str:
    """``A, B and C``."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def _named(ends: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Names made different by ``_b``, ``_c`` …, after ``_z`` by ``_26`` …"""
    names: dict[int, str] = {}
    seen: dict[str, int] = {}
    for queue, name in ends:
        again = seen.setdefault(name, 0)
        seen[name] += 1
        suffix = chr(ord("a") + again) if again < 26 else str(again)
        names[queue] = f"{name}_{suffix}" if again else name
    return names
