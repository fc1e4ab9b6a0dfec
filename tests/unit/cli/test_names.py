"""Typed names: lists, near misses, the two places of a topology; the version; completion in shells."""

import json
import platform
from typing import Any

import pytest

from blinkccl.engines import native_library
from blinkccl.topology.catalog import ALIASES, CATALOG
from blinkccl.topology.synthetic import FAMILIES


def test_the_list_has_all_machines_and_rules(blink: Any) -> None:
    printed = blink("topo", "--list").out
    rows = [line.split()[0] for line in printed.splitlines()]
    assert rows[1 : 1 + len(CATALOG)] == list(CATALOG)
    assert all(family.form in rows for family in FAMILIES.values())
    document = json.loads(blink("topo", "--list", "--json").out)
    assert [row["name"] for row in document["machines"]] == list(CATALOG)
    assert {other: row["name"] for row in document["machines"] for other in row["also"]} == ALIASES
    blink("topo", "dgx-1v", "--list").assert_refused("leave dgx-1v out")


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("plan AllReduce dgx-1v", "allreduce"),
        ("plan all-reduce dgx-1v", "allreduce"),
        ("plan reduce-scatter dgx-1v", "reduce_scatter"),
        ("plan allreduce DGX1V", "dgx-1v"),
        ("plan allreduce dgx-1v --algo One-Hop", "one_hop"),
        ("sim allreduce dgx-1v --algo nccl2.30", "nccl-2.30"),
    ],
)
def test_a_near_miss_gets_a_suggestion(blink: Any, command: str, meant: str) -> None:
    blink(*command.split()).assert_refused(f"(did you mean '{meant}'?)")


@pytest.mark.parametrize("verb", ["plan", "sim", "explain"])
def test_a_topology_stands_behind_the_collective_or_after_topo(blink: Any, verb: str) -> None:
    job = (verb, "broadcast", *(() if verb == "plan" else ("--size", "1M")), "--gpus", "0 1")
    assert blink(*job, "ring:4").out == blink(*job, "--topo", "ring:4").out
    blink(*job, "ring:4", "--topo", "ring:5").assert_refused("the topology is ring:4 and --topo ring:5: leave one out")


def test_the_version_says_what_is_installed(blink: Any) -> None:
    document = json.loads(blink("--version", "--json").out)
    text = blink("--version").out
    assert text.startswith(f"blink {document['blink']}\npython    CPython {platform.python_version()}\n")
    assert list(document["packages"]) == ["numpy", "highspy", "torch"]
    assert (document["native"]["library"] is None) == (document["native"]["why_not"] is not None)
    blink("--json", "plan", "allreduce").assert_refused("--json before the verb belongs to --version")


def test_the_version_says_why_there_is_no_library(blink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    native_library.load.cache_clear()
    monkeypatch.setenv(native_library.OVERRIDE, "/nowhere/libblink_host.so")
    try:
        assert "native    none: /nowhere/libblink_host.so cannot be used" in blink("--version").out
    finally:
        native_library.load.cache_clear()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("typed", "offered", "not_offered"),
    [
        ("blink pl", "plan", "pick"),
        ("blink plan all", "allreduce", "broadcast"),
        ("blink plan allreduce --topo dgx-", "dgx-1v", "mist"),
        ("blink plan allreduce nvl", "nvl72", "mist"),
        ("blink plan allreduce --gp", "--gpus", "--topo"),
    ],
)
def test_shells_complete(
    blink: Any, monkeypatch: pytest.MonkeyPatch, shell: str, typed: str, offered: str, not_offered: str
) -> None:
    monkeypatch.setenv("_BLINK_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", typed)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    printed = blink().out
    assert offered in printed
    assert not_offered not in printed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_a_script(blink: Any, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("_BLINK_COMPLETE", f"source_{shell}")
    assert f"_BLINK_COMPLETE=complete_{shell}" in blink().out
