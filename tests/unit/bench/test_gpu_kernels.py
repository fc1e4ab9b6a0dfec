"""The kernels of a GPU day on an emulated GPU: they give correct results, and a fault planted in each is noticed."""

from contextlib import suppress

import gpu_fold
import gpu_grid
import gpu_litmus
import pytest

from blinkccl.codegen.gpu_compiler import nvcc, nvrtc
from blinkccl.errors import UnsupportedError
from support.emulated_cuda import EmulatedCuda
from support.emulation import FindingError, needs_compiler

THREADS = 64
PROGRAM = gpu_grid.program_of("allreduce", 2, "one_hop")
TEXTS = {
    **{f"fold, {name}": gpu_fold.text_of(name) for name in gpu_fold.FORMATS.values()},
    "torn": gpu_litmus.TEXT,
    # A broadcast compiles fastest; kernels that reduce have the same loops as all others.
    "grid": gpu_grid.text_of(gpu_grid.program_of("broadcast", 2, "one_hop", root=0), "ll128"),
}


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (8, 4)])
def test_fold_is_as_the_definition_says(shape: tuple[int, int]) -> None:
    folds = gpu_fold.Folds(EmulatedCuda(), 4112, THREADS)
    assert [folds.check(dtype, *shape) for dtype in gpu_fold.FORMATS] == [True, True]


@needs_compiler
def test_a_fold_with_a_part_left_out_is_noticed() -> None:
    cuda = EmulatedCuda(fault=("state.folding = threads()", "state.folding = 4 * threads()"))
    folds = gpu_fold.Folds(cuda, 16384, THREADS)
    assert not folds.check("float32", 2, 1)


@needs_compiler
def test_lines_read_behind_a_vote_are_whole() -> None:
    for seed in range(5):
        result = gpu_litmus.litmus(EmulatedCuda(seed), 1, THREADS, 20)
        assert (result.rounds, result.second) == (40, 0)


@needs_compiler
def test_lines_that_are_written_by_halves_are_seen_torn() -> None:
    whole = "store_halves(at, {round, round});"
    assert whole in gpu_litmus.TEXT
    halves = f"if (has_flag) {{ {whole} }}\nconverge();\nif (!has_flag) {{ {whole} }}"
    torn = [gpu_litmus.litmus(EmulatedCuda(seed, fault=(whole, halves)), 1, THREADS, 20).second for seed in range(5)]
    assert any(torn)


@needs_compiler
def test_ranks_of_one_grid_are_right() -> None:
    assert gpu_grid.conformance(EmulatedCuda(), 3, 2, THREADS, (1, 301)) == []


@needs_compiler
def test_a_grid_in_which_blocks_run_for_another_rank_is_noticed() -> None:
    cuda = EmulatedCuda(fault=("grid.calls[block / grid.blocks]", "grid.calls[block % 2]"))
    with suppress(FindingError):
        assert gpu_grid.conformance(cuda, 2, 2, THREADS)


@needs_compiler
def test_a_round_takes_time_and_one_without_data_less() -> None:
    cuda = EmulatedCuda()
    grid = gpu_grid.Grid(cuda, PROGRAM, "ll", 1, THREADS)
    full, empty = (gpu_grid.round_s(cuda, grid, count, 3) for count in (1000, 0))
    assert 0 < empty < full


@pytest.mark.parametrize("name", TEXTS)
def test_kernels_compile_for_a_gpu(name: str) -> None:
    for find in (nvrtc, nvcc):
        try:
            compiler = find("sm_90")
        except UnsupportedError:
            continue
        assert compiler.compile(TEXTS[name], 120.0)
        return
    pytest.skip("neither NVRTC nor nvcc for sm_90 is here")
