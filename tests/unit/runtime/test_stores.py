"""Every kind of store has the same guarantees, and rejects input that could harm it."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from blinkccl.errors import CommunicationError, LaunchError, PeerLostError, PlanMismatchError
from blinkccl.runtime.environment import job_directory
from blinkccl.runtime.process import start_time
from blinkccl.runtime.store import (
    MAGIC,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    FileStore,
    MemoryStore,
    Store,
    TcpStore,
    TorchStore,
    open_store,
)
from support.extras import needs


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


def torch_store() -> Store:
    import torch.distributed as torch

    return TorchStore(torch.PrefixStore("group", torch.HashStore()))


@pytest.fixture(params=["file", "tcp", pytest.param("torch", marks=needs("torch")), "memory"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """One store, from the view of two ranks."""
    if request.param == "file":
        yield FileStore(tmp_path / "a" / "store"), FileStore(tmp_path / "a" / "store")
    elif request.param in ("torch", "memory"):
        store = torch_store() if request.param == "torch" else MemoryStore()
        yield store, store
    else:
        server = TcpStore("127.0.0.1", 0, rank=0, deadline=soon())
        client = TcpStore("127.0.0.1", server.port, rank=1, deadline=soon())
        yield server, client
        server.close()


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


# ---- The server ------------------------------------------------------------------------------------------------


def request(operation: str, key: bytes, value: bytes = b"", magic: str = MAGIC, rank: int = 1) -> bytes:
    return f"{magic} {rank} process%207%20on%20b {operation} {key.hex()} {len(value)}\n".encode() + value


@pytest.fixture
def server() -> Iterator[TcpStore]:
    store = TcpStore("127.0.0.1", 0, rank=0, deadline=soon())
    yield store
    store.close()
    store.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 1_000_000,
        MAGIC[:3].encode(),
        b"",
        b"\n",
        request("X", b"k"),
        request("P", b""),
        request("P", b"k" * 2 * MAX_KEY_BYTES),
        f"{MAGIC} 1 a S 00 {MAX_VALUE_BYTES + 1}\n".encode(),
        f"{MAGIC} 1 a S 00 -1\n".encode(),
        f"{MAGIC} 1 a S 00 {'9' * 2000}\n".encode(),
        f"{MAGIC}\n".encode(),
        f"{MAGIC} 1 a\n".encode(),
        f"{MAGIC} 1 a P\n".encode(),
        b"BLINKST P 00 0",
    ],
)
def test_invalid_requests_end_only_their_connection(
    server: TcpStore, monkeypatch: pytest.MonkeyPatch, garbage: bytes
) -> None:
    monkeypatch.setattr("blinkccl.runtime.store._Handler.timeout", 0.2)
    with socket.create_connection(("127.0.0.1", server.port), 10) as stranger:
        with suppress(ConnectionError):  # disconnected before its request was complete
            stranger.sendall(garbage)
        client = TcpStore("127.0.0.1", server.port, rank=1, deadline=soon())
        client.set("key", b"value")
        assert server.peek("key") == b"value"
        assert heard(stranger) == b""


def heard(connection: socket.socket) -> bytes:
    """All bytes until the other end closes the connection in any way."""
    received = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(1000):
            received += part
    return received


def test_a_full_table_and_a_crowd(server: TcpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blinkccl.runtime.store.MAX_TABLE_BYTES", 10)
    server.set("a", b"12345678")
    server.set("a", b"1234567890")
    with pytest.raises(CommunicationError, match="full"):
        server.set("b", b"1")
    client = TcpStore("127.0.0.1", server.port, rank=1, deadline=soon())
    with pytest.raises(CommunicationError, match=r"rank 0, which serves tcp:.*reports: .*full"):
        client.set("b", b"1")
    crowd = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(100)]
    assert client.peek("a") == b"1234567890"
    for connection in crowd:
        connection.close()


def test_strangers_do_not_take_all_threads(server: TcpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    most = threading.active_count() + 3
    monkeypatch.setattr("blinkccl.runtime.store.MAX_THREADS", most)
    crowd = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(10)]
    crowd[-1].settimeout(2)  # the server waits longer for an incomplete request
    assert heard(crowd[-1]) == b""
    assert threading.active_count() <= most
    for connection in crowd:
        connection.close()


def test_a_taken_port_is_an_error_with_port_and_owner(server: TcpStore) -> None:
    """Only ranks that know it find a store at a port that the system chose."""
    with pytest.raises(LaunchError, match=f"rank 0 cannot serve the store at 127.0.0.1:{server.port}"):
        TcpStore("127.0.0.1", server.port, rank=0, deadline=soon())
    with pytest.raises(PlanMismatchError, match="rank 0 is claimed by process"):
        server.check_callers()


def test_a_process_may_serve_again_where_it_served() -> None:
    """A program retries after an error, or after it has closed its communicator."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    first = TcpStore("127.0.0.1", port, rank=0, deadline=soon())
    first.give_up(CommunicationError("a rank did not come"), 1)
    second = TcpStore("127.0.0.1", port, rank=0, deadline=soon())
    client = TcpStore("127.0.0.1", port, rank=1, deadline=soon())
    client.set("key", b"1")
    assert second.peek("key") == b"1"
    second.close()
    third = TcpStore("127.0.0.1", port, rank=0, deadline=soon())
    assert third.peek("key") is None
    third.close()


def test_a_server_may_come_late_and_end_early() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    servers: list[TcpStore] = []
    timer = threading.Timer(0.1, lambda: servers.append(TcpStore("127.0.0.1", port, rank=0, deadline=soon())))
    timer.start()
    client = TcpStore("127.0.0.1", port, rank=1, deadline=soon())
    timer.join()
    client.set("key", b"1")
    assert servers[0].peek("key") == b"1"
    servers[0].close()
    for _ in range(2):
        with pytest.raises(PeerLostError) as raised:
            client.peek("key")
        assert raised.value.rank == 0


def test_a_foreign_store_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(CommunicationError, match=f"127.0.0.1:{port} does not answer as a store of this"):
            TcpStore("127.0.0.1", port, rank=1, deadline=soon())
        thread.join()


# ---- Ranks that are none -----------------------------------------------------------------------------------------


def test_a_rank_of_another_version_is_reported_to_all(server: TcpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version, rank and sender are at fixed places of every request."""
    server.check_callers()
    line = b"BLINKST9 3 process%207%20on%20host-b%20with%20version%202.0 ? anything at all 12\n"
    with socket.create_connection(("127.0.0.1", server.port), 10) as other:
        other.sendall(line)
        status, _, text = heard(other).partition(b"\n")
    assert status.split() == [MAGIC.encode(), b"!", str(len(text)).encode()]
    message = f"process {os.getpid()} on .* speaks {MAGIC} .* rank 3 .process 7 on host-b with version 2.0. BLINKST9"
    assert re.search(message, text.decode())
    with pytest.raises(PlanMismatchError, match=message):
        server.check_callers()
    monkeypatch.setattr("blinkccl.runtime.store.MAGIC", "BLINKST9")
    assert server._server is not None
    monkeypatch.setattr(server._server, "refused", lambda words: "a sentence")
    with pytest.raises(PlanMismatchError, match="a sentence"):
        TcpStore("127.0.0.1", server.port, rank=2, deadline=soon())


@pytest.mark.parametrize("met", [False, True])
def test_two_ranks_0_that_serve_find_each_other(server: TcpStore, monkeypatch: pytest.MonkeyPatch, met: bool) -> None:
    """The second serves at its own host, though the ranks have another address; a running job is not disturbed."""
    if met:
        server.all_came()
    monkeypatch.setattr("blinkccl.runtime.store.is_local", lambda host: False)
    second = TcpStore("127.0.0.2", 0, rank=0, deadline=soon())
    second.check_callers()  # its own connection works
    second.serves_at("127.0.0.1")
    second.port, second._next_look = server.port, 0.0
    with pytest.raises(PlanMismatchError, match="rank 0 is claimed by process"):
        second.check_callers()
    second.close()
    if met:
        server.check_callers()
        return
    with pytest.raises(PlanMismatchError, match="rank 0 is claimed by process"):
        server.check_callers()


def test_late_ranks_get_the_reason_of_the_failure(server: TcpStore) -> None:
    client = TcpStore("127.0.0.1", server.port, rank=1, deadline=soon())
    server.give_up(PlanMismatchError("ranks want different things"), 2)
    with pytest.raises(PlanMismatchError, match="ranks want different things"):
        client.peek("key")
    with pytest.raises(PlanMismatchError, match="ranks want different things"):
        TcpStore("127.0.0.1", server.port, rank=2, deadline=soon())


def test_a_group_that_fails_later_takes_nobody_the_store(server: TcpStore) -> None:
    server.all_came()
    server.give_up(PeerLostError(2), 5)
    assert TcpStore("127.0.0.1", server.port, rank=1, deadline=soon()).peek("key") is None


def test_a_rank_that_is_sent_away_comes_again(server: TcpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    client = TcpStore("127.0.0.1", server.port, rank=1, deadline=soon())
    monkeypatch.setattr("blinkccl.runtime.store.MAX_THREADS", 0)
    timer = threading.Timer(0.3, monkeypatch.setattr, ("blinkccl.runtime.store.MAX_THREADS", 512))
    timer.start()
    client.set("key", b"value")
    assert server.peek("key") == b"value"
    timer.join()


def test_announced_bytes_take_no_memory(server: TcpStore) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    crowd = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(100)]
    for stranger in crowd:
        stranger.sendall(f"{MAGIC} 1 a S 6b {MAX_VALUE_BYTES}\n".encode() + b"x")
    assert TcpStore("127.0.0.1", server.port, rank=1, deadline=soon()).peek("k") is None
    assert resident() - before < 32 << 20
    for stranger in crowd:
        stranger.close()


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
