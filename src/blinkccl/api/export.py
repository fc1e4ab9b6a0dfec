"""Export of a plan to another tool, with inputs that its format lacks: costs of a size, and NCCL's count of links."""

from __future__ import annotations

from dataclasses import replace

from blinkccl.formats.registry import ANY, Choices, CombiningCosts, File, format_of
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Forest


def exported(
    program: Program, forest: Forest, to: str, choices: Choices = ANY, machine: Topology | None = None
) -> tuple[File, ...]:
    """The files of a verified program; ``machine`` is the whole machine, if known.

    UsageError if the format is unknown or has no such choice; UnsupportedError if it cannot express the program.
    """
    row = format_of(to)
    row.check(choices)
    if row.sized:
        choices = priced(program, forest, choices)
    if row.of_rings:
        from blinkccl.cost.baselines.nccl_graph import rings_of_plan

        choices = replace(choices, rings=rings_of_plan(forest, machine))
    return row.write(program, forest, machine, choices)


def packed(machine: Topology, ranks: tuple[int, ...], to: str, choices: Choices = ANY) -> tuple[File, ...]:
    """The best files for a tool on these GPUs of a machine, without a plan; raises like :func:`exported`."""
    row = format_of(to)
    row.check(choices, plan=False)
    if row.of_rings:
        from blinkccl.cost.baselines.nccl_graph import rings_of_job

        choices = replace(choices, rings=rings_of_job(machine, ranks))
    return row.pack(machine, ranks, choices)


def priced(program: Program, forest: Forest, choices: Choices) -> Choices:
    """``choices`` with the program bound to their size; the simulator's pipeline model is the default of chunks."""
    from blinkccl.cost.simulate.calibration import calibration_for
    from blinkccl.cost.simulate.run import best_chunk_bytes, bind_bytes

    size, calibration = choices.size_bytes, calibration_for(forest.topology)
    assert size is not None  # Checked by the format.
    chunk = choices.chunk_bytes or best_chunk_bytes(program, forest.topology, calibration, size)
    engine = calibration.engine
    costs = CombiningCosts(calibration.name, engine.reduce_us.value, engine.reduce_gb_per_s.value)
    return replace(choices, bound=bind_bytes(program, size, chunk), costs=costs)
