"""Logs of today's servers, by the log alone: no false alarm, and everything halved is named (docs/doctor.md)."""

import pytest
from doctor_machines import PAGE
from doctor_today import HEALTHY_EACH, MARKS, SERVERS, halvings, outcome, outcomes, table

PLANTED = [(server, halved) for server in SERVERS for halved in halvings(server)]


def _name(value):
    return value if isinstance(value, str) else f"{value.ranks}x{value.machine}"


@pytest.mark.parametrize("server", SERVERS, ids=_name)
def test_healthy_logs_are_judged_and_have_nothing_wrong(server):
    for seed in range(HEALTHY_EACH):
        diagnosis = outcome(server, seed=seed).diagnosis
        assert not diagnosis.wrong
        assert not diagnosis.not_judged
        assert "nothing wrong was found" in diagnosis.verdict


def test_there_are_twenty_healthy_logs():
    assert HEALTHY_EACH * len(SERVERS) >= 20


@pytest.mark.parametrize(("server", "halved"), PLANTED, ids=_name)
def test_what_is_halved_is_named(server, halved):
    one = outcome(server, halved)
    assert one.named, one.causes


def test_the_page_has_the_table_of_today():
    assert f"{MARKS[0]}\n{table(outcomes())}{MARKS[1]}" in PAGE.read_text("utf-8")
