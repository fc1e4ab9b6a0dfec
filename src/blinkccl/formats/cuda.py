"""A plan as the CUDA C++ that GPUs run: what ``libblink.so`` compiles when a communicator is made."""

from __future__ import annotations

from blinkccl.codegen.channels import require_direct_stores
from blinkccl.codegen.text import Kernel, cuda_text
from blinkccl.formats.registry import Choices, File
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Forest


def write(program: Program, forest: Forest, _machine: Topology | None, _choices: Choices) -> tuple[File, ...]:
    """One file of code; see :class:`blinkccl.formats.registry.Write`. Refuses paths that no store takes."""
    require_direct_stores(program, forest.topology)
    name = program.collective.name
    return (File(f"{name}.cu", cuda_text([Kernel(name, program, forest)])),)
