"""Keeps ``torch.compile`` out of what torch's C++ calls here: such methods run as they are.

A backend in C++ has no Python frames. Ours has: while a compiled function runs, Dynamo looks at each frame that it
meets, and would translate a method that DDP's reducer calls. It refuses to trace into a ``ProcessGroup``, with an error
and not with a graph break (torch 2.13), so a model that trains with gloo would not with us.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

import torch

_Marked = TypeVar("_Marked", bound=type)


def eager(owner: _Marked) -> _Marked:
    """Marks all methods that the class itself defines: Dynamo runs them, and what they call, without translation."""
    eval_frame = torch._C._dynamo.eval_frame  # what torch.compiler.disable sets; that would load all of Dynamo
    skip = eval_frame._FrameAction.SKIP
    for member in vars(owner).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType):
            # As a frame of its own, and where a function that is compiled calls it.
            eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
            vars(function)["_torchdynamo_disable"] = True
    return owner
