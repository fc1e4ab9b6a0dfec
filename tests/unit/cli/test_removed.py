"""Removed verbs and options print one line with their replacement."""

from typing import Any

import pytest

from blinkccl.cli.app import command
from blinkccl.cli.removed import REMOVED


@pytest.mark.parametrize("typed", REMOVED)
def test_a_removed_word_answers_with_one_line(blink: Any, typed: str) -> None:
    ended = blink(*typed.split(), "allreduce")
    ended.assert_refused(f"error: blink {typed} was removed: {REMOVED[typed]}")
    assert ended.err.count("\n") == 1
    assert REMOVED[typed].startswith(("blink ", "python -m "))


@pytest.mark.parametrize(("verb", "most"), [("plan", 14), ("sim", 18), ("bench", 15), ("lab", 14)])
def test_a_verb_has_the_options_of_its_tasks(verb: str, most: int) -> None:
    """The limits are those of docs/interfaces.md, "The command line"."""
    assert sum(each.param_type_name == "option" for each in command.commands[verb].params) <= most


@pytest.mark.parametrize("typed", REMOVED)
def test_a_removed_word_is_no_verb_or_option(typed: str) -> None:
    verb, *option = typed.split()
    if not option:
        assert verb not in command.commands
    elif len(option) == 1:
        assert option[0] not in {name for each in command.commands[verb].params for name in each.opts}
