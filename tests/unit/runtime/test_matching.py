"""Assignment of messages to receives, compared with a plain search, in random orders."""

from random import Random

import pytest

from blinkccl.runtime.point_to_point import Matching, Receive


def test_a_message_takes_the_first_receive_that_it_fits() -> None:
    matching = Matching()
    exact, any_source, other_tag = Receive(1, 5), Receive(None, 5), Receive(1, 6)
    assert [matching.post(receive) for receive in (other_tag, any_source, exact)] == [None] * 3
    assert matching.arrive(1, 5) is any_source
    assert matching.arrive(1, 5) is exact
    assert matching.arrive(1, 5) is None
    assert matching.posted == [other_tag]


def test_a_receive_takes_the_first_message_set_aside() -> None:
    matching = Matching()
    for content in (b"first", b"second"):
        matching.set_aside(2, 7, content)
    matching.set_aside(2, 8, b"other")
    assert matching.post(Receive(1, 7)) is None
    assert matching.post(Receive(2, 7)) == (2, b"first")
    assert matching.post(Receive(None, 8)) == (2, b"other")
    assert matching.post(Receive(None, 7)) == (2, b"second")
    assert matching.post(Receive(None, 7)) is None


def test_receives_wait_for_their_source() -> None:
    matching = Matching()
    assert not matching.waits_for(0)
    matching.post(Receive(1, 3))
    assert matching.waits_for(1)
    assert not matching.waits_for(0)
    matching.post(Receive(None, 3))
    assert matching.waits_for(0)
    matching.arrive(1, 3)
    assert matching.waits_for(0), "the receive from any source is there still"
    matching.arrive(0, 3)
    assert not matching.waits_for(0)


@pytest.mark.parametrize("seed", range(50))
def test_every_message_of_a_lane_arrives_once_and_in_order(seed: int) -> None:
    """Sources send in order, receives come in any order; contents stay in order per source and tag."""
    random = Random(seed)
    matching = Matching()
    lanes = [(source, tag) for source in range(3) for tag in range(2)]
    sent: dict[tuple[int, int], list[bytes]] = {lane: [] for lane in lanes}
    got: dict[tuple[int, int], list[bytes]] = {lane: [] for lane in lanes}
    waiting: dict[int, Receive] = {}
    for number in range(200):
        if random.random() < 0.5:
            source, tag = random.choice(lanes)
            content = str(number).encode()
            sent[source, tag].append(content)
            receive = matching.arrive(source, tag)
            if receive is None:
                matching.set_aside(source, tag, content)
            else:
                del waiting[id(receive)]
                assert receive.fits(source, tag)
                got[source, tag].append(content)
        else:
            receive = Receive(random.choice((None, 0, 1, 2)), random.choice((0, 1)))
            message = matching.post(receive)
            if message is None:
                waiting[id(receive)] = receive
            else:
                source, content = message
                assert receive.source in (None, source)
                got[source, receive.tag].append(content)
        # No receive accepts a message that was set aside.
        for source, messages in matching.aside.items():
            assert not any(receive.fits(source, tag) for tag, _ in messages for receive in matching.posted)
    assert set(map(id, matching.posted)) == set(waiting)
    for lane in lanes:
        source, tag = lane
        left = [content for other, content in matching.aside.get(source, ()) if other == tag]
        assert got[lane] + left == sent[lane]
