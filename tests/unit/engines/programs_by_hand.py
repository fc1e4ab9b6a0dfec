"""Programs written by hand."""

from fractions import Fraction

from blinkccl.collectives.spec import Collective
from blinkccl.schedule.program import Channel, Program, Queue, Role, Slice
from blinkccl.schedule.verifier import violations
from blinkccl.topology.spec import parse_spec


def one_message_held_back() -> Program:
    """A broadcast in which rank 0 sends slice x to rank 1 and then to rank 2, into the queue of y, with one slot.

    Rank 2 reads y of the previous chunk only after z, which rank 1 forwards only after x of this chunk. Rank 0 must
    therefore announce x to rank 1 before the queue to rank 2 has a slot.
    """
    third = Fraction(1, 3)
    x, y, z = range(3)
    to_1, to_2, y_to_1, z_to_1, z_to_2 = range(5)

    def role(rank: int, part: int, offset: int, receives: tuple[int, ...], sends: tuple[int, ...]) -> Role:
        stage = "root" if rank == 0 else "broadcast"
        return Role(rank, 0, part, stage, offset, part, rank == 0, True, rank == 0, receives, sends)

    program = Program(
        Collective("broadcast", 3, root=0),
        (0, 1, 2),
        third,
        tuple(Slice(None, third * part, third * (part + 1)) for part in range(3)),
        tuple(Queue(a, b, (a, b), b) for a, b in ((0, 1), (0, 2), (0, 1), (0, 1), (1, 2))),
        (Channel((x, y, z), slots=1),),
        (
            role(0, z, 0, (), (z_to_1,)),
            role(0, x, 0, (), (to_1, to_2)),
            role(0, y, 0, (), (y_to_1, to_2)),
            role(1, x, 0, (to_1,), ()),
            role(1, z, 0, (z_to_1,), (z_to_2,)),
            role(1, y, 0, (y_to_1,), ()),
            role(2, z, 0, (z_to_2,), ()),
            role(2, y, 1, (to_2,), ()),
            role(2, x, 0, (to_2,), ()),
        ),
    )
    assert violations(program, parse_spec("clique:3")) == []
    return program
