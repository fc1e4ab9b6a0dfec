"""The picture of one small plan, byte by byte. After a wanted change: ``pytest tests/golden --update-golden``."""

from __future__ import annotations

from pathlib import Path

EXPECTED = Path(__file__).parent / "expected" / "show-1456.svg"


def test_the_picture_of_a_plan(blink, tmp_path, pytestconfig):
    plan, picture = tmp_path / "plan.json", tmp_path / "plan.svg"
    blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "1,4,5,6", "-o", plan)
    assert blink("show", plan, "--size", "256K", "-o", picture).code == 0
    found = picture.read_text(encoding="utf-8")
    if pytestconfig.getoption("--update-golden"):
        EXPECTED.write_text(found, encoding="utf-8")
    assert found == EXPECTED.read_text(encoding="utf-8")
