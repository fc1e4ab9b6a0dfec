"""torch's names for what ``collectives/ops.py`` has."""

from __future__ import annotations

from importlib import import_module

import pytest

from blinkccl.collectives import ops
from blinkccl.errors import UnsupportedError

torch = pytest.importorskip("torch", reason="needs PyTorch")
dist = pytest.importorskip("torch.distributed")
types = import_module("blinkccl.torch_backend.types")


def test_every_element_type_has_its_torch_type_of_the_same_size():
    assert set(types.DTYPES.values()) == set(ops.DTYPES)
    for dtype, name in types.DTYPES.items():
        assert dtype.itemsize == ops.DTYPES[name].itemsize


def test_every_operation_has_its_torch_operation():
    assert set(types.OPERATIONS.values()) == set(ops.OPS)
    options = dist.AllreduceOptions()
    for kind, name in types.OPERATIONS.items():
        if name != "premul_sum":
            options.reduceOp = kind
            assert types.reduction(options.reduceOp) == types.reduction(kind) == (name, None)


@pytest.mark.parametrize("factor", [0.25, torch.tensor([0.25])])
def test_a_scaled_sum_says_its_factor(factor):
    options = dist.AllreduceOptions()
    options.reduceOp = dist._make_nccl_premul_sum(factor)
    assert types.reduction(options.reduceOp) == ("premul_sum", 0.25)


def test_what_cannot_be_is_refused():
    with pytest.raises(UnsupportedError, match="complex64; it can int8"):
        types.element_type(torch.zeros(1, dtype=torch.complex64))
    with pytest.raises(UnsupportedError, match="needs its factor"):
        types.reduction(dist.ReduceOp.PREMUL_SUM)
    with pytest.raises(UnsupportedError, match="no reduction"):
        types.reduction(None)
