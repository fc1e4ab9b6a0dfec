"""Ranks that do not match are refused with a reason that names them and their values."""

import json
import re

import pytest
from jobs_by_hand import job, peer, peers, settings

from blinkccl.errors import LaunchError, UnsupportedError
from blinkccl.nccl.peer_info import MAX_PEER_INFO_BYTES, read_peer_info


def read(rows):
    return read_peer_info(json.dumps(rows).encode())


def test_cards_come_in_any_order():
    rows = peers(4)
    read_job = read(rows[::-1])
    assert [one.rank for one in read_job.peers] == [0, 1, 2, 3]
    assert (read_job.size, read_job.shared, read_job.architectures, read_job.capability) == (4, 1, ("sm_90",), 90)
    assert read_job.has_nccl


def test_ranks_of_one_gpu_are_counted():
    shared = job(4, device=lambda rank: rank // 3, uuid=lambda rank: f"{rank // 3:032x}")
    assert (shared.shared, len(shared.gpus)) == (3, 2)


def test_the_oldest_gpu_decides():
    mixed = job(2, major=lambda rank: (7, 9)[rank], arch=lambda rank: ("sm_70", "sm_90")[rank])
    assert (mixed.capability, mixed.architectures) == (70, ("sm_70", "sm_90"))


@pytest.mark.parametrize(
    ("key", "values", "said"),
    [
        ("boot_id", ["aa", "aa", "bb"], r"different hosts \(rank 0-1: aa; rank 2: bb\)"),
        ("blink_version", ["1.0", "1.1", "1.0"], r"different Blink versions \(rank 0,2: 1.0; rank 1: 1.1\)"),
        ("nccl_version", [23007, 23007, 22907], r"different NCCL versions .*rank 2: 22907"),
        ("driver_version", [12080, 13000, 13000], r"driver versions \(rank 0: CUDA 12.8; rank 1-2: CUDA 13.0"),
        (
            "settings",
            [settings(), settings(algo="ring"), settings()],
            r"different settings \(rank 0,2: nothing; rank 1: algo=ring\).*BLINK_ALGO",
        ),
        (
            "settings",
            [settings(), settings(), settings(protocol="ll")],
            r"different settings \(rank 0-1: nothing; rank 2: protocol=ll\).*BLINK_PROTOCOL",
        ),
    ],
)
def test_mixed_ranks_are_refused_by_name(key, values, said):
    with pytest.raises(UnsupportedError, match=said):
        job(3, **{key: lambda rank: values[rank]})


def test_minor_versions_of_drivers_may_differ():
    assert job(2, driver_version=lambda rank: (13000, 13010)[rank]).size == 2


def test_a_library_of_another_blink_is_refused(monkeypatch):
    monkeypatch.setattr("blinkccl.nccl.peer_info.package_version", lambda: "2.0")
    message = r"libblink.so has Blink 1.9, but the planner's Python has 2.0; .*BLINK_PYTHON"
    with pytest.raises(UnsupportedError, match=message):
        job(2, blink_version="1.9")


@pytest.mark.parametrize("ranks", [[0, 2], [0, 0], [1, 2]])
def test_every_rank_occurs_once(ranks):
    with pytest.raises(LaunchError, match="expected each of 0 … 1 once"):
        read([peer(rank) for rank in ranks])


def test_one_rank_needs_no_trees():
    with pytest.raises(UnsupportedError, match=r"1 rank\(s\)"):
        job(1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("uuid", "GPU-1"),
        ("bus_id", "1a"),
        ("bus_id", "0000:1a:00.0\n"),
        ("arch", "sm_90; rm"),
        ("device", -1),
        ("multiprocessors", 0),
        ("driver_version", 3),
        ("boot_id", ""),
        ("pid", 0),
        ("name", "\x1b[2J"),
        ("settings", {"topo": "x\ny"}),
        ("settings", {"topo": "x" * 5000}),
    ],
)
def test_values_out_of_range_are_refused_by_place(key, value):
    place = {"settings": "peer 1: 'topo'", "name": "peer 1: 'name'"}.get(key, rf"Expected .* - at `\$\[1\]\.{key}`")
    with pytest.raises(LaunchError, match=place) as refused:
        read([peer(0), peer(1, **{key: value})])
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"[", b"\xff", b"[" * 5000, b'[{"rank": "0"}]', b"null"])
def test_data_other_than_an_array_of_peers_is_refused(data):
    with pytest.raises(LaunchError, match="no peer info"):
        read_peer_info(data)


def test_cards_have_an_end():
    with pytest.raises(LaunchError, match=re.escape(str(MAX_PEER_INFO_BYTES))):
        read_peer_info(b" " * (MAX_PEER_INFO_BYTES + 1))
