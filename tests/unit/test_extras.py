"""Marks of tests that need an extra such as torch, so that `make test-more` runs every test that `make test` skips."""

import re
from pathlib import Path

import pytest

from support.extras import EXTRAS, MODULES

TESTS = Path(__file__).parents[1]
#: A skip without a module, at the head of a file or (indented) in a test.
SKIPS = re.compile(rf"""^( *).*(?:importorskip|find_spec)\(["']({"|".join(MODULES)})\b""", re.MULTILINE)


def unmarked(text: str) -> list[str]:
    """The extras without which tests of a file skip themselves, but which they do not state in a mark."""
    marked = re.findall(r"^pytestmark = .*\bneeds\(\"(\w+)\"\)", text, re.MULTILINE)
    return [MODULES[module] for indent, module in SKIPS.findall(text) if indent or MODULES[module] not in marked]


def test_every_skip_without_an_extra_has_its_mark() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py") if path != Path(__file__)}
    assert {str(path): extras for path, text in texts.items() if (extras := unmarked(text))} == {}
    named = {name for text in texts.values() for name in re.findall(r"\bneeds\(\"(\w+)\"\)", text)}
    assert named == EXTRAS.keys()


@pytest.mark.parametrize(
    "text",
    [
        'torch = pytest.importorskip("torch", reason="needs PyTorch")\n',
        'def test_it() -> None:\n    dist = pytest.importorskip("torch.distributed")\n',
        '@pytest.mark.skipif(find_spec("torch") is None, reason="gloo comes with PyTorch")\n',
        'pytestmark = needs("sphinx")\ntorch = pytest.importorskip("torch")\n',
        'pytestmark = needs("torch")\ndef test_it() -> None:\n    pytest.importorskip("torch")\n',
    ],
)
def test_a_skip_without_a_mark_is_noticed(text: str) -> None:
    assert unmarked(text) == ["torch"]
