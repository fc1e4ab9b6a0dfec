"""Which chunk to try in the next iteration? Multiplicative increase, additive decrease (Blink, MLSys 2020, §4.2.1).

A pure state machine: it is told a throughput and says the next chunk. It holds no clock and does no I/O, so that the
simulator and live ranks use the same one. Ranks that observe the same numbers choose the same chunks.

What Blink says: start small, multiply the chunk "as long as the measured throughput is increasing", and "if the
throughput decreases we additively decrease the chunk size until we reach a steady state". Fig 12 starts at 1 MB,
doubles, and is steady after four iterations. Where it is silent we chose:

- *Increasing* means more than the observation before, by more than the part ``tolerance`` of it. The default of 0 is
  for simulated times, which have no noise; who measures should give the noise of one measurement.
- What does not increase counts as a decrease: a plateau is not climbed.
- *The step* of the decrease is 1 MiB, as large as the first chunk. Blink gives none.
- *The decrease* starts from the first chunk that was too large and goes on while every step raises the throughput.
  It may pass the largest chunk that was still good: the best may lie below it.
- *The steady state* is the best chunk of all observed, not the last one.
- Nothing is tried again later. A job whose links change starts a new search.
- Where throughput still rises at ``most_bytes``, that chunk is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from blinkccl.errors import UsageError

KIB, MIB = 1024, 1024 * 1024

_PHASES = ("increase", "decrease", "steady")


@dataclass(frozen=True, slots=True)
class Miad:
    """A chunk-size search at one point; :meth:`observe` gives the next.

    Parameters
    ----------
    first_bytes
        The chunk to start with.
    factor
        What a chunk is multiplied by, 1.1 to 16.
    step_bytes
        What it is lowered by, ≥ 1.
    least_bytes, most_bytes
        No chunk lies outside; 1 ≤ least ≤ first ≤ most.
    tolerance
        By which part throughput must rise to count as rising, 0 ≤ tolerance < 1.
    phase, chunk_bytes, best_bytes, best_gb_per_s, last_gb_per_s
        The state, set by :meth:`observe`. ``chunk_bytes`` is the chunk to use in the next iteration.

    Raises
    ------
    UsageError
        If a number is out of range.

    Notes
    -----
    At most :attr:`most_observations` observations, whatever they are. Let tolerance be 0, and let throughput first rise
    and then fall with the chunk, never by more than the chunk changes (r times the chunk is at most r times as fast or
    as slow). Then the chunk found reaches at least 1/√factor of the best throughput in [first, most], since one of the
    multiples is within √factor of the best chunk. Where time is A/s + B·s + C in the chunk s, as in the chunk pipeline
    model, it takes at most (√factor + 1/√factor)/2 times as long, 1.061 for 2.
    """

    first_bytes: int = MIB
    factor: float = 2.0
    step_bytes: int = MIB
    least_bytes: int = 64 * KIB
    most_bytes: int = 64 * MIB
    tolerance: float = 0.0
    phase: str = "increase"
    chunk_bytes: int = 0
    best_bytes: int = 0
    best_gb_per_s: float = -1.0
    last_gb_per_s: float = -1.0

    def __post_init__(self) -> None:
        if not 1 <= self.least_bytes <= self.first_bytes <= self.most_bytes:
            raise UsageError(
                f"chunks start at {self.first_bytes} bytes within {self.least_bytes} to {self.most_bytes}; expected "
                "1 <= least <= first <= most"
            )
        if not 1.1 <= self.factor <= 16:
            raise UsageError(f"chunks grow by a factor of {self.factor}; expected 1.1 to 16")
        if self.step_bytes < 1:
            raise UsageError(f"chunks shrink by {self.step_bytes} bytes; expected at least 1")
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"a tolerance of {self.tolerance}; expected 0 <= tolerance < 1")
        if self.phase not in _PHASES:
            raise UsageError(f"unknown phase {self.phase!r}; expected one of {', '.join(_PHASES)}")
        if self.chunk_bytes == 0:
            object.__setattr__(self, "chunk_bytes", self.first_bytes)

    @property
    def steady(self) -> bool:
        """Whether the search is over; then ``chunk_bytes`` is the best chunk observed and stays."""
        return self.phase == "steady"

    @property
    def most_observations(self) -> int:
        """A new search is steady after so many observations at the latest."""
        increases, chunk = 1, self.first_bytes
        while chunk < self.most_bytes:
            chunk = self._larger(chunk)
            increases += 1
        return increases + -(-(self.most_bytes - self.least_bytes) // self.step_bytes)

    def observe(self, throughput_gb_per_s: float) -> Miad:
        """The search after an iteration with ``chunk_bytes`` reached ``throughput_gb_per_s``.

        A number below zero or no number counts as no throughput. Observations of a steady search change nothing.
        """
        if self.steady:
            return self
        observed = throughput_gb_per_s if throughput_gb_per_s > 0.0 else 0.0
        rises = self.last_gb_per_s < 0.0 or observed > self.last_gb_per_s * (1.0 + self.tolerance)
        after = replace(self, last_gb_per_s=observed)
        if observed > self.best_gb_per_s:
            after = replace(after, best_bytes=self.chunk_bytes, best_gb_per_s=observed)
        if self.phase == "increase" and rises:
            if self.chunk_bytes == self.most_bytes:
                return after._settled()
            return replace(after, chunk_bytes=self._larger(self.chunk_bytes))
        if self.phase == "increase" or rises:
            if self.chunk_bytes == self.least_bytes:
                return after._settled()
            smaller = max(self.least_bytes, self.chunk_bytes - self.step_bytes)
            return replace(after, phase="decrease", chunk_bytes=smaller)
        return after._settled()

    def _larger(self, chunk_bytes: int) -> int:
        return min(self.most_bytes, max(chunk_bytes + 1, int(chunk_bytes * self.factor)))

    def _settled(self) -> Miad:
        return replace(self, phase="steady", chunk_bytes=self.best_bytes)
