"""Every kind of store has the same guarantees, and rejects input that could harm it."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from blinkccl.errors import CommunicationError, LaunchError
from blinkccl.runtime.environment import job_directory
from blinkccl.runtime.process import start_time
from blinkccl.runtime.store import (
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    FileStore,
    JobPort,
    MpiStore,
    Store,
    TorchStore,
    open_store,
)
from support.extras import needs


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


def torch_store() -> Store:
    import torch.distributed as torch

    return TorchStore(torch.PrefixStore("group", torch.HashStore()))


@pytest.fixture(params=["file", pytest.param("torch", marks=needs("torch"))])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """One store, from the view of two ranks."""
    if request.param == "file":
        yield FileStore(tmp_path / "a" / "store"), FileStore(tmp_path / "a" / "store")
    else:
        store = torch_store()
        yield store, store


def test_what_one_sets_the_other_sees(pair: tuple[Store, Store]) -> None:
    for writer, reader in (pair, pair[::-1]):
        for value in (b"", b"\0\xff\n", bytes(range(256)) * 2000):
            writer.set("a/key", value)
            assert reader.peek("a/key") == value
        assert reader.peek("a") is None
        writer.set("a/key", b"")


def test_keys_of_any_characters_do_not_meet(pair: tuple[Store, Store]) -> None:
    keys = ["a", "a/b", "a%2Fb", "..", "../a", "a\0", "ä", "a" * MAX_KEY_BYTES, "a" * (MAX_KEY_BYTES - 1), "a b", "A"]
    for index, key in enumerate(keys):
        pair[0].set(key, str(index).encode())
    assert [pair[1].peek(key) for key in keys] == [str(index).encode() for index in range(len(keys))]


def test_limits(pair: tuple[Store, Store]) -> None:
    for store in pair:
        with pytest.raises(ValueError, match="a key has 1 to"):
            store.set("", b"")
        with pytest.raises(ValueError, match="a key has 1 to"):
            store.peek("a" * (MAX_KEY_BYTES + 1))
        with pytest.raises(ValueError, match="a value has at most"):
            store.set("a", b"\0" * (MAX_VALUE_BYTES + 1))
        store.set("a", b"\0" * MAX_VALUE_BYTES)
        assert len(store.peek("a") or b"") == MAX_VALUE_BYTES


def test_a_reader_never_sees_a_part_of_a_value(pair: tuple[Store, Store]) -> None:
    writer, reader = pair
    values = [bytes([letter]) * 50_000 for letter in range(30)]
    writer.set("key", values[0])
    thread = threading.Thread(target=lambda: [writer.set("key", value) for value in values * 3])
    thread.start()
    seen = []
    while thread.is_alive():
        seen.append(reader.peek("key"))
    thread.join()
    assert set(seen) <= set(values)


# ---- Directories -----------------------------------------------------------------------------------------------


def test_a_directory_of_a_store_is_made_for_this_user_alone(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "a" / "b")
    store.set("key", b"1")
    assert store.directory.stat().st_mode & 0o777 == 0o700
    (file,) = store.directory.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    with pytest.raises(LaunchError, match="expected mode 0700, got 0750"):
        FileStore(tmp_path)


def test_unsuitable_directories_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(LaunchError, match=f"directory {tmp_path}/{name}: "):
            FileStore(tmp_path / name)
    with pytest.raises(LaunchError, match="cannot be made"):
        FileStore(tmp_path / "file" / "below")
    mistyped = Path("/no-such-directory-of-blink")
    for path, why in (
        (mistyped, "it is directly below the root"),
        (mistyped / "job", f"{mistyped} does not exist"),
    ):
        text = f"is not created, because {why}; make it for this job with mkdir -p -m 700 {path}"
        with pytest.raises(LaunchError, match=text):
            open_store(f"file://{path}", 0, soon())
    assert not mistyped.exists()


def test_another_users_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(LaunchError, match=f"expected owner {owner + 1}, got {owner}"):
        FileStore(tmp_path)


def test_a_directory_that_vanishes_is_a_lost_store(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    store.directory.rmdir()
    assert store.peek("key") is None
    with pytest.raises(CommunicationError, match="cannot write key 'key' in directory"):
        store.set("key", b"")


def test_rank_0_sweeps_away_directories_of_jobs_that_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    base = tmp_path / "blink"
    parent = os.getppid()
    mine = job_directory(base, (parent, start_time(parent)), ["job"])
    ended = job_directory(base, (parent, start_time(parent) + 1), ["job"])
    elsewhere = base / ended.name.replace("job-", "job-1")
    for directory in (ended, elsewhere, base / "other"):
        FileStore(directory).set("key", b"")
    base.chmod(0o700)
    open_store(f"file://{mine}", 1, soon()).set("key", b"1")
    assert ended.exists()
    store = open_store(f"file://{mine}", 0, soon())
    assert store.peek("key") == b"1"
    assert not ended.exists()
    assert elsewhere.exists()
    assert (base / "other").exists()


def test_the_directory_above_a_jobs_must_be_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    base = tmp_path / "blink"
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(LaunchError, match=f"directory {base}: expected mode 0700"):
        open_store(f"file://{job_directory(base, (1, 1), [])}", 1, soon())


# ---- Places without a store -------------------------------------------------------------------------------------


def test_a_port_keeps_nothing() -> None:
    port = open_store("tcp://[fd00::2]:29500", 1, soon())
    assert isinstance(port, JobPort)
    assert (str(port), port.addresses(), port.port) == ("tcp://[fd00::2]:29500", ["fd00::2"], 29500)
    port.set("key", b"1")
    assert port.peek("key") is None


class World:
    """MPI_COMM_WORLD of two ranks, which are two threads."""

    def __init__(self, rank: int, sent: SimpleQueue[object]) -> None:
        self.rank, self._sent = rank, sent

    def bcast(self, value: object) -> object:
        if self.rank == 0:
            self._sent.put(value)
            return value
        return self._sent.get(timeout=10)


def test_mpi_broadcasts_the_first_value_of_rank_0() -> None:
    sent: SimpleQueue[object] = SimpleQueue()
    zero, one = MpiStore(World(0, sent)), MpiStore(World(1, sent))
    assert zero.peek("key") is None
    zero.set("key", b"1")
    one.set("here/1", b"")
    for store in (zero, one):
        assert store.peek("key") == b"1"
        assert store.peek("here/1") is None
    zero.set("other", b"2")
    assert sent.empty()


def test_addresses_for_ranks_of_other_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Torchs:
        host = "127.0.0.1"

    monkeypatch.delenv("BLINK_HOSTID", raising=False)
    stores = [FileStore(tmp_path / "store"), TorchStore(Torchs())]
    assert [store.addresses() for store in stores] == [[], []]
    monkeypatch.setenv("BLINK_HOSTID", "a")
    assert [store.addresses() for store in stores] == [["127.0.0.1"]] * 2
    monkeypatch.setattr("blinkccl.runtime.store.own_addresses", lambda host: [f"mine towards {host}"])
    monkeypatch.setattr(Torchs, "host", "far")
    assert stores[1].addresses() == ["mine towards far"]


# ---- URLs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["", "store", "file://relative", "http://a:1", "tcp://a", "tcp://:1", "tcp://a:0", "tcp://a:65536", "tcp://a:b",
     "tcp://a:1/path", "tcp://u@a:1", "tcp://[::1]", "tcp://fd00::2:1"],
)  # fmt: skip
def test_invalid_store_urls_are_rejected(url: str) -> None:
    with pytest.raises(LaunchError, match="store '"):
        open_store(url, 0, soon())


@needs("torch")
def test_torchs_store_served_by_rank_0_and_by_an_agent() -> None:
    import torch.distributed as torch

    agent = torch.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    urls = [f"torchrun://127.0.0.1:{agent.port}" for _ in range(2)]
    stores = [open_store(url, rank, soon()) for rank, url in enumerate(urls)]
    stores[0].set("key", b"\0\xff")
    wait_for(stores[1], "key", b"\0\xff")
    assert stores[1].peek("other") is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    served = [open_store(f"torch://127.0.0.1:{port}", rank, soon()) for rank in range(2)]
    served[1].set("key", b"2")
    wait_for(served[0], "key", b"2")


def wait_for(store: Store, key: str, value: bytes) -> None:
    """Wait for the value: torch's set() returns before the server has it."""
    end = soon()
    while store.peek(key) != value:
        assert time.monotonic() < end


def test_a_lost_torch_store_is_named() -> None:
    class Gone:
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(CommunicationError, match=r"torch's Gone failed .*; check that the process that serves it runs"):
        TorchStore(Gone()).peek("key")
