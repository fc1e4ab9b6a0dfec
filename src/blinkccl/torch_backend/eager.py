"""Exclusion of methods that torch's C++ calls from ``torch.compile``, so that they run untranslated.

A backend in C++ has no Python frames, but ours has. While a compiled function runs, Dynamo inspects each frame and
would translate a method that DDP's reducer calls. It refuses to trace into a ``ProcessGroup``, with an error and not
with a graph break (torch 2.13). So a model that trains with gloo would fail with blink.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

import torch

_Marked = TypeVar("_Marked", bound=type)


def eager(owner: _Marked) -> _Marked:
    """Mark all methods that the class itself defines: Dynamo runs them and their callees without translation."""
    eval_frame = torch._C._dynamo.eval_frame  # as torch.compiler.disable, which would load all of Dynamo
    skip = eval_frame._FrameAction.SKIP
    for member in vars(owner).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType):
            # Both for a frame of its own and for a call from a compiled function.
            eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
            vars(function)["_torchdynamo_disable"] = True
    return owner
