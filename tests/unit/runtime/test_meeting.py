"""The state machine of rendezvous, on a dictionary: in any order of events, with what earlier runs left."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest

from blinkccl.errors import CommunicationError, RendezvousTimeout
from blinkccl.runtime.card import PROTOCOL, Card, decode, encode
from blinkccl.runtime.meeting import GRACE_S, Entry, Meeting


def card(rank: int, size: int, pid: int, **changes: object) -> Card:
    made = Card(rank, size, "host", "boot", 1, 1, pid, 7, 0, "1.0", PROTOCOL)
    return msgspec.structs.replace(made, **changes)


@dataclass
class World:
    """A store, and which processes run: by number; ``blind`` to those that cannot be seen."""

    keys: dict[str, bytes] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    blind: bool = False
    nonces: int = 0

    def alive(self, card: Card) -> bool | None:
        return None if self.blind else card.pid in self.running

    def enter(self, rank: int, size: int, pid: int, now: float = 0.0, **changes: object) -> Rank:
        self.running.add(pid)
        self.nonces += 1
        entry = Entry(f"n{self.nonces}", encode(card(rank, size, pid, **changes)))
        entered = Rank(self, Meeting(rank, size, entry, now, self.alive), pid)
        self.keys.update(entered.meeting.opening())
        return entered


@dataclass
class Rank:
    """A rank in a world: steps until it has cards or a fault."""

    world: World
    meeting: Meeting
    pid: int
    pids: list[int] | None = None
    fault: str | None = None
    lost: tuple[int, int] | None = None

    @property
    def done(self) -> bool:
        return self.pids is not None or self.fault is not None

    def step(self, now: float = 0.0) -> None:
        seen = {key: self.world.keys[key] for key in self.meeting.wanted() if key in self.world.keys}
        step = self.meeting.step(seen, now)
        self.world.keys.update(step.writes)
        if step.fault is not None:
            self.fault = step.fault.text
            if step.fault.lost is not None and step.fault.pid is not None:
                self.lost = step.fault.lost, step.fault.pid
        self.pids = None if step.cards is None else [decode(data).pid for data in step.cards]

    def give_up(self, now: float = 1.0) -> RendezvousTimeout:
        self.world.keys.update(self.meeting.leaving(now))
        return self.meeting.timeout(self.world.keys)


def run(ranks: list[Rank], random: Random, steps: int = 400) -> None:
    for _ in range(steps):
        waiting = [rank for rank in ranks if not rank.done and rank.pid in rank.world.running]
        if not waiting:
            return
        random.choice(waiting).step()


@pytest.mark.parametrize("seed", range(40))
def test_ranks_meet_in_any_order_also_where_others_met_before(seed: int) -> None:
    random = Random(seed)
    world = World(blind=seed % 2 == 1)
    for job in range(3):
        # Who cannot see that an old lead has ended would take another number of ranks for a disagreement.
        size = 3 if world.blind else random.randint(2, 5)
        ranks: list[Rank] = []
        for rank in random.sample(range(size), size):
            ranks.append(world.enter(rank, size, 100 * job + rank))
            run(ranks, random, random.randint(0, 6))
        run(ranks, random)
        assert [rank.pids for rank in ranks] == [[100 * job + rank for rank in range(size)]] * size
        world.running.clear()


@pytest.mark.parametrize("seed", range(60))
def test_ranks_that_end_may_be_started_again_until_all_have_met(seed: int) -> None:
    random = Random(seed)
    world = World()
    ranks = {rank: world.enter(rank, 3, rank) for rank in range(random.randint(1, 3))}
    for pid in range(10, 10 + random.randint(1, 6)):
        run(list(ranks.values()), random, random.randint(0, 8))
        if any(rank.done for rank in ranks.values()):
            break
        again = random.randrange(3)
        if again in ranks:
            world.running.remove(ranks[again].pid)
        run(list(ranks.values()), random, random.randint(0, 3))
        ranks[again] = world.enter(again, 3, pid)
    for rank in range(3):
        if rank not in ranks:
            ranks[rank] = world.enter(rank, 3, 30 + rank)
    run(list(ranks.values()), random)
    assert [rank.pids for rank in ranks.values()] == [[ranks[rank].pid for rank in range(3)]] * 3


@pytest.mark.parametrize("twice", [0, 1])
@pytest.mark.parametrize("seed", range(30))
def test_a_rank_claimed_twice_is_everybodys_fault(seed: int, twice: int) -> None:
    random = Random(seed)
    world = World(blind=seed % 2 == 1)
    ranks: list[Rank] = []
    for pid, rank in random.sample([(10, 0), (11, 1), (12, twice)], 3):
        ranks.append(world.enter(rank, 3, pid))
        run(ranks, random, random.randint(0, 6))
    run(ranks, random)
    for rank in ranks:
        assert rank.fault is not None
        assert f"rank {twice} is claimed by process 1" in rank.fault
        assert "process 12 on host" in rank.fault


def test_the_others_hear_of_a_second_rank_0() -> None:
    world = World()
    leader, one = world.enter(0, 3, 10), world.enter(1, 3, 11)
    run([leader, one], Random(0), 20)
    world.enter(0, 3, 12)
    world.running.remove(12)
    for rank in (leader, one):
        rank.step()
        assert rank.fault is not None
        assert "rank 0 is claimed by process 10 on host and by process 12 on host" in rank.fault


def test_a_rank_takes_the_place_of_one_that_ended() -> None:
    world = World()
    one, first = world.enter(1, 3, 11), world.enter(0, 3, 12)
    run([one, first], Random(0), 20)  # it has posted its card
    world.running.remove(12)
    second = world.enter(0, 3, 13)
    other = world.enter(1, 3, 14)
    run([other, second], Random(0), 20)
    world.running.remove(14)
    ranks = [second, one, world.enter(2, 3, 15)]
    run(ranks, Random(0))
    assert [rank.pids for rank in ranks] == [[13, 11, 15]] * 3


def test_the_same_process_may_meet_again_after_giving_up() -> None:
    world = World()
    leader, other = world.enter(0, 3, 10), world.enter(1, 3, 11)
    run([leader, other], Random(0), 20)
    assert other.give_up().missing == (2,)
    ranks = [leader, world.enter(1, 3, 11), world.enter(2, 3, 12)]
    run(ranks, Random(0))
    assert [rank.pids for rank in ranks] == [[10, 11, 12]] * 3


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("changes", "what"),
    [({"world_size": 3}, "world_size"), ({"version": "1.1"}, "version"), ({"protocol": PROTOCOL + 1}, "protocol")],
)
def test_ranks_that_disagree_all_say_so(changes: dict[str, object], what: str, seed: int) -> None:
    random = Random(seed)
    world = World(blind=seed % 2 == 1)
    ranks = [world.enter(0, 2, 10), world.enter(1, 2, 11, **changes)]
    random.shuffle(ranks)
    run(ranks, random)
    for rank in ranks:
        assert rank.fault is not None
        assert f"disagree on {what}: " in rank.fault
        assert "process 10 on host" in rank.fault
        assert "process 11 on host" in rank.fault


def test_a_fault_of_an_ended_leader_is_nobodys() -> None:
    world = World()
    ranks = [world.enter(0, 2, 10), world.enter(1, 2, 11, version="0.9")]
    run(ranks, Random(0))
    assert all(rank.fault for rank in ranks)
    world.running.clear()
    ranks = [world.enter(1, 2, 21)]
    run(ranks, Random(0), 5)
    ranks.append(world.enter(0, 2, 20))
    run(ranks, Random(0))
    assert [rank.pids for rank in ranks] == [[20, 21]] * 2


@pytest.mark.parametrize("lost", [0, 1])
def test_an_ended_rank_is_lost_unless_it_comes_again(lost: int) -> None:
    world = World()
    ranks = [world.enter(0, 3, 10), world.enter(1, 3, 11)]
    run(ranks, Random(0), 20)
    world.running.remove(10 + lost)
    other = ranks[1 - lost]
    other.step(5.0)
    other.step(5.0 + 0.9 * GRACE_S)
    assert not other.done
    other.step(5.0 + 1.1 * GRACE_S)
    assert other.lost == (lost, 10 + lost)
    late = world.enter(2, 3, 12, now=9.0)  # who comes now hears of it at once, as long as the leader lives
    late.step(9.0)
    late.step(9.0)
    assert late.lost == ((1, 11) if lost == 1 else None)


@pytest.mark.parametrize("left", [0, 1])
def test_a_rank_that_gave_up_is_not_lost(left: int) -> None:
    world = World()
    ranks = [world.enter(0, 3, 10), world.enter(1, 3, 11)]
    run(ranks, Random(0), 20)
    ranks[left].give_up(now=5.0)
    world.running.remove(10 + left)
    for now in (5.1, 20.0, 40.0):
        ranks[1 - left].step(now)
    assert not ranks[1 - left].done
    error = ranks[1 - left].give_up(now=41.0)
    assert (error.missing, error.present) == ((2,), (0, 1))


def test_nobody_missing_before_anybody_came() -> None:
    world = World()
    error = world.enter(1, 4, 11).give_up()
    assert (error.missing, error.present) == ((0, 2, 3), (1,))
    assert "rank 1 of 4 waited" in str(error)


def test_ranks_of_earlier_runs_are_missing() -> None:
    world = World()
    world.enter(3, 5, 33).give_up(now=5.0)
    world.running.clear()
    leader, one, two = world.enter(0, 5, 10, now=10.0), world.enter(1, 5, 11, now=10.0), world.enter(2, 5, 12, now=10.0)
    run([leader, one, two], Random(0), 30)
    assert one.give_up(now=20.0).missing == (3, 4)
    world.running -= {11, 12}  # one after it gave up, the other before
    error = leader.give_up(now=20.1)
    assert (error.missing, error.present) == ((2, 3, 4), (0, 1))


def test_who_came_and_did_not_take_part_is_missing() -> None:
    world = World()
    leader, one, two = (world.enter(rank, 3, 10 + rank) for rank in range(3))
    run([leader, one], Random(0), 20)
    assert leader.give_up().missing == (2,)
    two.step()
    error = two.give_up()
    assert error.missing == (0,)
    assert "did not take part in time" in str(error)


def test_a_late_rank_is_told_who_holds_its_place() -> None:
    world = World()
    run([world.enter(0, 2, 10), world.enter(1, 2, 11)], Random(0))
    late = world.enter(1, 2, 12)
    run([late], Random(0), 10)
    assert not late.done
    assert "process 11 on host was its rank 1. Is a rank started twice" in str(late.give_up())


@pytest.mark.parametrize("key", ["lead", "n1/roster", "n1/card/1"])
def test_what_is_not_ours_is_named(key: str) -> None:
    world = World()
    leader, one = world.enter(0, 2, 10), world.enter(1, 2, 11)
    one.step()
    world.keys[key] = b"\xc1 something else"
    rank = one if key == "n1/roster" else leader
    with pytest.raises(CommunicationError, match=f"key '{key}' of the store holds nothing of ours"):
        rank.step()
