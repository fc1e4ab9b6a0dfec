"""The generated code of some plans: one as text, the others by their digest.

After an intended change: ``--update-golden``; ``blink export PLAN --to cuda`` prints the code behind a digest.
"""

import hashlib
from pathlib import Path

import pytest

from blinkccl.codegen.text import Kernel, cuda_text
from blinkccl.schedule.lower import lower
from support.planned import asked, planned

EXPECTED = Path(__file__).parent / "expected"

#: Name of the golden text → algorithm, SPEC, GPUs (None: all), collective, number of the root.
CASES = {
    "code-allreduce-1456": ("optimal", "dgx-1v", "1,4,5,6", "allreduce", 0),
    "code-allreduce-one_shot": ("one_shot", "dgx-a100", "0,3,5,6", "allreduce", 0),
    "code-allgather-ring": ("ring", "ring:3", None, "allgather", 0),
    "code-reduce_scatter-one_hop": ("one_hop", "dgx-a100", "0,3,5", "reduce_scatter", 0),
    "code-broadcast": ("blink", "dgx-1v", "0,1,2,3", "broadcast", 2),
}
#: The case that is kept as text; README shows a part of it.
READ = "code-allreduce-1456"


@pytest.mark.parametrize("name", CASES)
def test_the_code_is_unchanged(name: str, pytestconfig: pytest.Config) -> None:
    algorithm, spec, gpus, collective, root = CASES[name]
    forest = planned(algorithm, asked(spec, collective, gpus, root))
    text = cuda_text([Kernel(collective, lower(forest), forest)])
    path = EXPECTED / f"{name}.cu"
    if name != READ:
        text, path = hashlib.sha256(text.encode()).hexdigest() + "\n", path.with_suffix(".sha256")
    if pytestconfig.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_no_golden_code_is_left_over() -> None:
    left = [path.stem for suffix in ("cu", "sha256") for path in EXPECTED.glob(f"*.{suffix}")]
    assert sorted(left) == sorted(CASES)
