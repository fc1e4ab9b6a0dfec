"""Exit codes of all errors, in one total table (docs/interfaces.md)."""

from __future__ import annotations

from blinkccl import errors

CHECK_FAILED = 1
USAGE = 2
HARDWARE = 3
TIMEOUT = 4


class HardwareError(errors.BlinkError):
    """A driver or device of this machine is missing or fails; the message names it, and the remedy."""


#: The most specific class decides. InternalError is a failed check: an exact re-check refused a result.
EXIT_CODES: dict[type[errors.BlinkError], int] = {
    errors.BlinkError: CHECK_FAILED,
    errors.UsageError: USAGE,
    errors.TopologyError: USAGE,
    errors.PackingError: USAGE,
    errors.ScheduleError: USAGE,
    errors.VerificationError: CHECK_FAILED,
    errors.UnsupportedError: USAGE,
    errors.LimitError: USAGE,
    errors.TimeUpError: TIMEOUT,
    errors.LaunchError: USAGE,
    errors.CommunicationError: TIMEOUT,
    errors.DeadlineError: TIMEOUT,
    errors.StalledError: TIMEOUT,
    errors.RendezvousTimeout: TIMEOUT,
    errors.PeerLostError: TIMEOUT,
    errors.PlanMismatchError: TIMEOUT,
    errors.InternalError: CHECK_FAILED,
    HardwareError: HARDWARE,
}


def exit_code(error: errors.BlinkError) -> int:
    """The exit code of the nearest class of ``error`` in :data:`EXIT_CODES`."""
    return next(EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES)
