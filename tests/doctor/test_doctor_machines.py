"""Simulated machines with one planted fault each: the doctor detects it and reports no other (docs/doctor.md)."""

import pytest
from doctor_machines import FAULTS, MARKS, PAGE, SAMPLE_MARKS, run, samples, table

from support.examples import ALL_TESTS


def test_hidden_faults_are_found_and_nothing_else():
    planted = [run(seed) for seed in range(200 if ALL_TESTS else len(FAULTS))]
    healthy = [run(seed, healthy=True) for seed in range(100 if ALL_TESTS else 12)]
    missed = [(one.seed, one.base, one.causes) for one in planted if not one.found]
    alarms = [(one.seed, one.base, one.false_alarms) for one in (*planted, *healthy) if one.false_alarms]
    assert len(missed) <= 0.05 * len(planted), missed
    assert len(alarms) <= 0.02 * (len(planted) + len(healthy)), alarms


@pytest.mark.slow
def test_the_page_has_the_table_of_today():
    outcomes = [*(run(seed) for seed in range(200)), *(run(seed, healthy=True) for seed in range(100))]
    assert f"{MARKS[0]}\n{table(outcomes)}{MARKS[1]}" in PAGE.read_text("utf-8")


def test_the_page_has_the_output_of_today():
    assert f"{SAMPLE_MARKS[0]}\n{samples()}{SAMPLE_MARKS[1]}" in PAGE.read_text("utf-8")


def test_healthy_machines_have_nothing_wrong_and_faulty_ones_have():
    """A diagnosis that ignored its input would fail one of the two."""
    assert run(3, healthy=True).diagnosis.healthy
    assert not run(3).diagnosis.healthy
