"""Exit codes: what each of our errors means to a shell, in one total table (docs/interfaces.md)."""

from __future__ import annotations

from blinkccl import errors

CHECK_FAILED = 1
USAGE = 2
HARDWARE = 3
TIMEOUT = 4


class HardwareError(errors.BlinkError):
    """This machine has no driver or device that works; the message says which, and what to do."""


#: The most specific class decides. A mistake of ours is a failed check: an exact re-check refused a result.
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
    """The exit code of ``error``: that of its nearest class in :data:`EXIT_CODES`."""
    return next(EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES)
