"""Export of a plan as CUDA C++: the code that ``libblink.so`` compiles when it creates a communicator."""

from __future__ import annotations

from blinkccl.codegen.channels import require_direct_stores
from blinkccl.codegen.text import Kernel, cuda_text
from blinkccl.formats.registry import Choices, File
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Forest


def write(program: Program, forest: Forest, _machine: Topology | None, _choices: Choices) -> tuple[File, ...]:
    """One source file; see :class:`blinkccl.formats.registry.Write`. Refuses paths that stores cannot take."""
    require_direct_stores(program, forest.topology)
    name = program.collective.name
    return (File(f"{name}.cu", cuda_text([Kernel(name, program, forest)])),)
