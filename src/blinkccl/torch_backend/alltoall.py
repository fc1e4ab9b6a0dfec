"""AllToAll when each rank knows only its own blocks, and may say or not that they are equal.

First all ranks tell each other the sizes of what they send and expect: a small AllGather. From these numbers, which
are then the same everywhere, all choose the same way: equal blocks go by one AllToAll, straight from tensor to tensor
where these lie in one piece; unequal ones by one AllToAll of blocks as long as the longest, as long as that is not
mostly padding; else by messages. Sizes that do not fit are found here, on all ranks, before anything hangs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from blinkccl.errors import PlanMismatchError
from blinkccl.torch_backend.issue import Request, moved
from blinkccl.torch_backend.memory import copy
from blinkccl.torch_backend.transport import Transport

#: The tag of messages here: torch's own tags are not negative.
TAG = -1
#: How many times the data may be sent for the sake of one collective; messages cost more than copying.
PADDING = 4


@dataclass(slots=True)
class AllToAll(Request):
    """The request. ``outputs[r]`` comes from rank r, ``inputs[r]`` goes there.

    Parameters
    ----------
    rank
        This rank.
    outputs, inputs
        One tensor per rank, of any layout; no output shares memory with an input.
    """

    rank: int = 0
    outputs: Sequence[Tensor] = ()
    inputs: Sequence[Tensor] = ()

    def run(self, transport: Transport, timeout_s: float) -> None:
        """Runs it, and waits for its end.

        Raises
        ------
        PlanMismatchError
            If a rank sends another number of bytes than its peer expects; on all ranks.
        """
        sizes = self._agreed(transport, timeout_s)
        longest, total = int(sizes.max()), int(sizes.sum())
        if (sizes == longest).all():
            source, target = self.memory.reads_all(self.inputs), self.memory.writes_all(self.outputs)
            moved("alltoall", source, target, longest).run(transport, timeout_s)
        elif longest * sizes.size <= PADDING * total:
            self._padded(longest, transport, timeout_s)
        else:
            self._by_messages(transport, timeout_s)

    def _agreed(self, transport: Transport, timeout_s: float) -> NDArray[np.int64]:
        """Bytes from rank to rank."""
        own = np.array([[tensor.nbytes for tensor in side] for side in (self.inputs, self.outputs)])
        everybodys = np.empty((len(self.inputs), *own.shape), np.int64)
        moved("allgather", own.ctypes.data, everybodys.ctypes.data, own.nbytes).run(transport, timeout_s)
        sent, expected = everybodys[:, 0], everybodys[:, 1].T
        for source, target in np.argwhere(sent != expected):
            raise PlanMismatchError(
                f"all_to_all: rank {source} sends {int(sent[source, target])} bytes to rank {target}, which expects "
                f"{int(expected[source, target])}; both must give the same split sizes and element type"
            )
        return sent

    def _padded(self, block: int, transport: Transport, timeout_s: float) -> None:
        ranks = len(self.inputs)
        sent, received = (self.memory.room(ranks * block).view(ranks, block) for _ in range(2))
        for row, tensor in zip(sent, self.inputs, strict=True):
            copy(_as(row, tensor), tensor)
        moved("alltoall", sent.data_ptr(), received.data_ptr(), block).run(transport, timeout_s)
        for row, tensor in zip(received, self.outputs, strict=True):
            copy(tensor, _as(row, tensor))

    def _by_messages(self, transport: Transport, timeout_s: float) -> None:
        ranks = len(self.inputs)
        # Starting with the next rank keeps all ranks from sending to the same one at once.
        peers = [(self.rank + step) % ranks for step in range(1, ranks)]
        receives = [
            transport.irecv(self.memory.writes(tensor), tensor.nbytes, peer, TAG, timeout_s)
            for peer in peers
            if (tensor := self.outputs[peer]).nbytes
        ]
        sends = [
            transport.isend(self.memory.reads(tensor), tensor.nbytes, peer, TAG, timeout_s)
            for peer in peers
            if (tensor := self.inputs[peer]).nbytes
        ]
        copy(self.outputs[self.rank], self.inputs[self.rank])
        for received in receives:
            received.result()
        for sent in sends:
            sent.result()


def _as(row: Tensor, tensor: Tensor) -> Tensor:
    """The beginning of ``row``, which are bytes, as a tensor like ``tensor``."""
    return row[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
