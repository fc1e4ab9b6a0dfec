"""How does a store of torch serve as ours? By ``set``, ``get`` and ``check``, which all of them have.

torch is imported only by :class:`TorchTcpStore`: under torchrun it is installed, and its agent holds the port.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any

from blinkccl.errors import CommunicationError, LaunchError, RendezvousTimeout, UnsupportedError
from blinkccl.runtime.store_contract import Store, check_key, check_value


class TorchStore(Store):
    """A store of torch, or a prefix of one, looked at as ours.

    It stays the caller's: closing this lets go of it and does no more. Its own time-out bounds each call.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __str__(self) -> str:
        return f"torch's {type(self._inner).__name__}"

    def set(self, key: str, value: bytes) -> None:
        check_key(key)
        with self._named_errors():
            self._inner.set(key, check_value(value))

    def peek(self, key: str) -> bytes | None:
        check_key(key)
        with self._named_errors():
            return bytes(self._inner.get(key)) if self._inner.check([key]) else None

    def delete(self, key: str) -> None:
        check_key(key)
        with self._named_errors():
            self._inner.delete_key(key)

    def close(self) -> None:
        self._inner = None

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        if self._inner is None:
            raise CommunicationError("torch's store has been closed in this process; open it again")
        try:
            yield
        except RuntimeError as error:  # torch.distributed.DistError and its kinds are RuntimeErrors
            raise CommunicationError(f"{self} failed; has the process that serves it ended? {error}") from error


class TorchTcpStore(TorchStore):
    """torch's TCPStore, which torchrun's agent serves; imports torch.

    Where nobody else serves it rank 0 does, and shares the port with ``init_process_group("env://")``.

    Raises
    ------
    UnsupportedError
        If torch cannot be imported.
    LaunchError
        If rank 0 cannot serve at this port.
    RendezvousTimeout
        If nobody serves at ``deadline``.
    """

    def __init__(self, host: str, port: int, *, server: bool, deadline: float) -> None:
        try:
            torch_distributed = import_module("torch.distributed")
        except ImportError as error:
            raise UnsupportedError(
                f"the ranks were told to meet in torch's store at {host}:{port}, but torch cannot be imported "
                f"({error}); install torch, or set BLINK_STORE=tcp://HOST:PORT or file:///directory for all ranks"
            ) from error
        left = timedelta(seconds=max(0.1, deadline - time.monotonic()))
        try:
            inner = torch_distributed.TCPStore(
                host, port, None, server, left, wait_for_workers=False, multi_tenant=True
            )
        except RuntimeError as error:
            if server:
                raise LaunchError(f"rank 0 cannot serve torch's store at {host}:{port}: {error}") from error
            raise RendezvousTimeout(
                [0], [], f"torch's store at {host}:{port} did not answer within {left.total_seconds():.1f} s"
            ) from error
        super().__init__(inner)
