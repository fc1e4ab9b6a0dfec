"""Cost of the recorder: AllReduce between two processes of this host with it off and on, in turns.

``python benchmarks/recorder.py [LEAST_BYTES]`` prints medians and the median of the turns' ratios. LEAST_BYTES is the
least chunk whose executions are recorded (BLINK_TIMELINE's 65536; 0: all).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import numpy as np

SIZES = (1 << 10, 8 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20)
TURNS, EVENTS, TURN_S = 80, 65_536, 4e-3


def measure(least_bytes: int) -> None:
    """Run one rank; rank 0 prints."""
    from blinkccl.collectives.call import CollectiveCall
    from blinkccl.runtime.communicator import init

    communicator = init()
    group = communicator.group
    for size in SIZES:
        count = size // 4
        data, result = np.ones(count, np.float32), np.zeros(count, np.float32)
        call, at = CollectiveCall("allreduce", "float32", count), (data.ctypes.data, result.ctypes.data)
        calls = max(5, min(400, int(TURN_S / (2e-6 + size / 4e9))))
        group.time(call, *at, 200 if size < 1 << 20 else 20)
        medians: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(TURNS):
            for on in (False, True) if turn % 2 == 0 else (True, False):
                group.endpoint.record(EVENTS if on else 0, least_bytes)
                group.time(call, *at, 5)
                medians[on].append(float(np.median(group.time(call, *at, calls))))
        ratios = np.array(medians[True]) / np.array(medians[False])
        low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
        off, on_us = (1e6 * float(np.median(medians[on])) for on in (False, True))
        if communicator.rank == 0:
            print(
                f"{size:>9} bytes: off {off:9.2f} us, on {on_us:9.2f} us, ratio {middle:.3f} ({low:.3f} to {high:.3f})"
            )
    communicator.close()


def main() -> int:
    """Start two ranks, or be one."""
    least_bytes = int(sys.argv[1]) if len(sys.argv) > 1 else 65_536
    if "BLINK_RANK" in os.environ:
        measure(least_bytes)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        common = {**os.environ, "BLINK_WORLD_SIZE": "2", "BLINK_STORE": f"file://{directory}/store"}
        ranks = [
            subprocess.Popen([sys.executable, __file__, str(least_bytes)], env={**common, "BLINK_RANK": str(rank)})
            for rank in range(2)
        ]
        return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
