"""The link that undelivered data identifies."""

from blinkccl.apps.lab.diagnosis import blocked, common_links, connections, sentence

WAITS = {1: TimeoutError("rank 1 waits for chunk 3")}


def test_the_link_common_to_all_blocked_paths_is_named() -> None:
    held = {(0, 16, 1): 9, (2, 16, 1): 12, (1, 16, 2): 4}
    assert blocked(held) == [(0, 16, 1), (2, 16, 1)], "the last is behind the others"
    assert common_links(blocked(held)) == [(16, 1)]
    assert sentence(held, WAITS) == "nothing, or too little, comes over link 16 → 1: rank 1 waits for chunk 3"
    assert blocked({}) == []
    assert sentence({}, WAITS) == ""


def test_paths_without_a_common_link_are_all_named() -> None:
    assert common_links([(0, 1), (1, 2)]) == [(0, 1), (1, 2)]


def test_a_receiver_that_does_not_answer_says_nothing_about_its_link() -> None:
    assert sentence({(0, 2): 9}, WAITS) == ""


def test_a_line_of_the_kernel_is_a_peer_and_its_unconfirmed_bytes() -> None:
    table = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100800A:1B58 0000800A:C350 01 00000A10:00000000 01:00000014 00000000     0        0 1 1 0 20 4 1 10 -1
"""
    assert connections(table) == [("10.128.0.0", 0xA10)]
