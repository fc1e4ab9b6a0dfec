"""An error of ours is one of torch's too, and loses nothing."""

from __future__ import annotations

import pickle
from importlib import import_module

import pytest

from blinkccl.errors import BlinkError, DeadlineError, PeerLostError, RendezvousTimeout, UnsupportedError

dist = pytest.importorskip("torch.distributed", reason="needs PyTorch")
for_torch = import_module("blinkccl.torch_backend.failure").for_torch

ERRORS = [
    BlinkError("plain"),
    PeerLostError(2, "its process ended", pid=77),
    RendezvousTimeout([1, 3], [0, 2], "waited 5 s"),
    UnsupportedError("no such thing"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_both_classes_one_message(error):
    made = for_torch(error)
    assert isinstance(made, type(error))
    assert isinstance(made, dist.DistBackendError)
    assert isinstance(made, RuntimeError)
    assert str(made) == str(error)
    assert type(made).__name__ == type(error).__name__
    assert for_torch(made) is made


def test_what_the_error_knows_it_still_knows():
    made = for_torch(ERRORS[1])
    assert (made.rank, made.pid) == (2, 77)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_it_travels(error):
    made = pickle.loads(pickle.dumps(for_torch(error)))
    assert isinstance(made, type(error))
    assert isinstance(made, RuntimeError)
    assert str(made) == str(error)


def test_a_timeout_says_so_in_torchs_words():
    assert str(for_torch(DeadlineError("rank 0 waited"), "barrier")) == "barrier: Timed out - rank 0 waited"
    assert str(for_torch(BlinkError("lost"), "barrier")) == "lost"
