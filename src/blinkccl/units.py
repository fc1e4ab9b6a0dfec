"""Bytes, seconds and GB/s: parsing, printing, and nccl-tests' definitions of bandwidth."""

from __future__ import annotations

import re
from fractions import Fraction

GB = 1_000_000_000
_SIZE = re.compile(r"^\s*(\d{1,30}(?:\.\d{1,30})?)\s*([KMGT]?)(i?)B?\s*$", re.IGNORECASE)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_bytes(text: str) -> int:
    """Bytes from ``"4K"``, ``"64MiB"`` or ``"123"``, else ValueError; K, M, G are powers of 1024 as in nccl-tests."""
    match = _SIZE.match(text)
    if match is None:
        raise ValueError(f"not a size in bytes: {text!r} (expected a number with an optional K, M, G or T)")
    size = Fraction(match.group(1)) * 1024 ** _POWER[match.group(2).upper()]
    if size.denominator != 1:
        raise ValueError(f"not a whole number of bytes: {text!r}")
    return int(size)


def size_text(size_bytes: int) -> str:
    """A size such as ``64M``, with K, M and G as powers of 1024, rounded to three digits."""
    for unit, power in (("E", 60), ("P", 50), ("T", 40), ("G", 30), ("M", 20), ("K", 10)):
        if size_bytes >= 2**power:
            return f"{size_bytes / 2**power:{'.3g' if size_bytes < 1000 * 2**power else '.0f'}}{unit}"
    return f"{size_bytes}"


def parse_gb_per_s(text: str) -> Fraction:
    """GB/s (1e9 bytes per second) from ``"40Gbps"``, ``"25GB/s"`` or ``"100Gb/s"``, exactly, else ValueError."""
    match = re.match(r"^\s*(\d{1,30}(?:\.\d{1,30})?)\s*(Gbps|Gb/s|Gbit/s|GB/s|GBps)\s*$", text)
    if match is None:
        raise ValueError(f"not a rate: {text!r} (expected e.g. '40Gbps' or '25GB/s')")
    value = Fraction(match.group(1))
    return value if match.group(2).startswith("GB") else value / 8


def algbw_gb_per_s(size_bytes: int, seconds: float) -> float:
    """Algorithm bandwidth in GB/s: S / t, as in nccl-tests."""
    return size_bytes / seconds / GB


#: busbw = algbw × factor(n), nccl-tests' PERFORMANCE.md: the bytes that one rank's link must carry per byte of S.
_BUS_FACTOR = {
    "allreduce": lambda n: Fraction(2 * (n - 1), n),
    "allgather": lambda n: Fraction(n - 1, n),
    "reduce_scatter": lambda n: Fraction(n - 1, n),
    "alltoall": lambda n: Fraction(n - 1, n),
    "gather": lambda n: Fraction(n - 1, n),
    "scatter": lambda n: Fraction(n - 1, n),
    "broadcast": lambda n: Fraction(1),
    "reduce": lambda n: Fraction(1),
    "sendrecv": lambda n: Fraction(1),
}


def bus_factor(collective: str, world_size: int) -> Fraction:
    """busbw / algbw for ``collective`` on ``world_size`` ranks (nccl-tests 2.19.6)."""
    return _BUS_FACTOR[collective](world_size)
