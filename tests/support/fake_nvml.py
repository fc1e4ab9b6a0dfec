"""NVML on a configurable machine: a module like pynvml."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class FakeError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class FakeNvml:
    """A machine of ``count`` GPUs; handles are their numbers."""

    NVMLError = FakeError

    def __init__(
        self,
        count: int,
        lanes: dict[tuple[int, int], int] | None = None,
        switch_lanes: int = 0,
        capability: tuple[int, int] = (7, 0),
    ) -> None:
        self.count = count
        self.switch_lanes = switch_lanes
        self.capability = capability
        self.ends: list[list[int]] = [[] for _ in range(count)]
        for (a, b), number in (lanes or {}).items():
            self.ends[a] += [b] * number
            self.ends[b] += [a] * number
        self.p2p_off: set[tuple[int, int]] = set()
        self.fails: dict[str, int] = {}
        self.closed = 0
        self.answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": self.shutdown,
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByIndex": lambda i: i,
            "nvmlDeviceGetPciInfo": lambda gpu: SimpleNamespace(busId=f"00000000:{gpu + 0xA0:02X}:00.0"),
            "nvmlDeviceGetName": lambda gpu: b"Test GPU",
            "nvmlDeviceGetCudaComputeCapability": lambda gpu: self.capability,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu: 4,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: 16,
            "nvmlDeviceGetNvLinkState": self.nvlink_state,
            "nvmlDeviceGetNvLinkRemoteDeviceType": self.nvlink_remote_type,
            "nvmlDeviceGetNvLinkRemotePciInfo": self.nvlink_remote_pci,
            "nvmlDeviceGetP2PStatus": self.p2p_status,
            "nvmlDeviceGetTopologyCommonAncestor": lambda a, b: (
                10 if a // 2 == b // 2 else 30 if a // 4 == b // 4 else 50
            ),
        }

    def __getattr__(self, name: str) -> Any:
        """Return NVML's function of this name."""
        if name not in self.answers:
            raise AttributeError(name)
        if name not in self.fails:
            return self.answers[name]

        def fail(*_: Any) -> None:
            raise FakeError(self.fails[name])

        return fail

    def shutdown(self) -> None:
        self.closed += 1

    def nvlink_state(self, gpu: int, link: int) -> int:
        if link >= len(self.ends[gpu]) + self.switch_lanes + 1:
            raise FakeError(2)
        return int(link < len(self.ends[gpu]) + self.switch_lanes)

    def nvlink_remote_type(self, gpu: int, link: int) -> int:
        return 0 if link < len(self.ends[gpu]) else 2

    def nvlink_remote_pci(self, gpu: int, link: int) -> SimpleNamespace:
        remote = self.ends[gpu][link] if link < len(self.ends[gpu]) else 0x30
        return SimpleNamespace(busId=f"0000:{remote + 0xA0:02x}:00.0".encode())

    def p2p_status(self, a: int, b: int, index: int) -> int:
        assert index == 2
        joined = b in self.ends[a] or self.switch_lanes
        return 0 if joined and (a, b) not in self.p2p_off else 3
