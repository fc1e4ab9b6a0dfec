"""What was removed answers with one line that names its replacement."""

from __future__ import annotations

from typing import Any

import pytest

from blinkccl.cli.app import command
from blinkccl.cli.removed import REMOVED


@pytest.mark.parametrize("typed", REMOVED)
def test_a_removed_word_answers_with_one_line(blink: Any, typed: str) -> None:
    ended = blink(*typed.split())
    ended.assert_refused(f"error: blink {typed} was removed: {REMOVED[typed]}")
    assert ended.err.count("\n") == 1
    assert REMOVED[typed].startswith("blink ")


@pytest.mark.parametrize("typed", REMOVED)
def test_a_value_behind_a_removed_word_changes_nothing(blink: Any, typed: str) -> None:
    blink(*typed.split(), "allreduce").assert_refused(f"blink {typed} was removed")


@pytest.mark.parametrize("typed", REMOVED)
def test_what_was_removed_is_gone(typed: str) -> None:
    verb, *option = typed.split()
    if not option:
        assert verb not in command.commands
    elif len(option) == 1:
        assert option[0] not in {name for each in command.commands[verb].params for name in each.opts}
