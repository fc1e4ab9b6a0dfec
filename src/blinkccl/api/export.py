"""A plan as files of another tool, with what its format cannot know: costs of a size, and how NCCL counts links."""

from __future__ import annotations

from dataclasses import replace

from blinkccl.formats.registry import ANY, Choices, CombiningCosts, File, format_of
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Forest


def exported(
    program: Program, forest: Forest, to: str, choices: Choices = ANY, machine: Topology | None = None
) -> tuple[File, ...]:
    """The files of a program that the verifier accepts; ``machine`` is the whole one, where somebody said which.

    UsageError where the format is none, or leaves no such choice; UnsupportedError where it cannot say what is done.
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
    """What is best for a tool on these GPUs of a machine, without a plan; raises as :func:`exported`."""
    row = format_of(to)
    row.check(choices, plan=False)
    if row.of_rings:
        from blinkccl.cost.baselines.nccl_graph import rings_of_job

        choices = replace(choices, rings=rings_of_job(machine, ranks))
    return row.pack(machine, ranks, choices)


def priced(program: Program, forest: Forest, choices: Choices) -> Choices:
    """``choices`` with the program bound to their size, in their chunks or those of the simulator's pipeline model."""
    from blinkccl.cost.simulate.calibration import calibration_for
    from blinkccl.cost.simulate.run import best_chunk_bytes, bind_bytes

    size, calibration = choices.size_bytes, calibration_for(forest.topology)
    assert size is not None  # As the format has checked.
    chunk = choices.chunk_bytes or best_chunk_bytes(program, forest.topology, calibration, size)
    engine = calibration.engine
    costs = CombiningCosts(calibration.name, engine.reduce_us.value, engine.reduce_gb_per_s.value)
    return replace(choices, bound=bind_bytes(program, size, chunk), costs=costs)
