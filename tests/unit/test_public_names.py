"""Public names of ``blinkccl``: each has documentation, and its examples run."""

import doctest
import subprocess
import sys
from types import ModuleType

import pytest

import blinkccl
import blinkccl.errors
from support.extras import needs

#: The public names, and the module with the classes of errors.
DOCUMENTED = [*blinkccl.__all__, "errors"]


def run_examples(public: object, name: str) -> None:
    """Run the examples in the docstrings of ``public``, which must have one, and of its methods."""
    names = None if isinstance(public, ModuleType) else {}  # an example imports the names that it uses
    tests = [test for test in doctest.DocTestFinder().find(public, name, globs=names) if test.examples]
    assert any(test.name == name for test in tests), f"blinkccl.{name} has no example in its docstring"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    output: list[str] = []
    for test in tests:
        assert not any(doctest.SKIP in one.options for one in test.examples), f"{test.name}: an example is skipped"
        runner.run(test, out=output.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(output)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_name_has_an_example_and_it_runs(name: str) -> None:
    run_examples(getattr(blinkccl, name), name)


@needs("torch")
@pytest.mark.parametrize("name", ["group", "shared_buckets", "stats"])
def test_every_name_for_pytorch_has_an_example_and_it_runs(name: str) -> None:
    assert name in blinkccl.torch.__all__
    run_examples(getattr(blinkccl.torch, name), name)


def test_public_names_exist_and_an_unknown_name_is_an_error() -> None:
    assert set(blinkccl.__all__) <= set(dir(blinkccl))
    with pytest.raises(AttributeError, match="no attribute 'plna'"):
        blinkccl.plna  # noqa: B018


def test_importing_it_loads_no_room() -> None:
    code = "import sys, blinkccl; print([m for m in sys.modules if m.startswith('blinkccl.') or m == 'numpy'])"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout == "[]\n"
