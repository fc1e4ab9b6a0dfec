"""Run the conformance suite that PyTorch ships, with the ranks as forked processes.

    python tests/torch_suite/run.py --world-size 2                    # backend "blink", compared with gloo's record
    python tests/torch_suite/run.py --world-size 2 --backend gloo --record

The suite is ``torch.testing._internal.distributed.distributed_test``. It selects tests by the backend's name, and skips
many for an unknown name. Here the name is ``gloo``, and ``init_process_group``, ``new_group`` and ``get_backend``
translate between ``gloo`` and ``blink``. The counters of all ranks, in the last line of the table, prove that blink ran
the calls.

Ranks are forked, not spawned, which takes a third of a second per test instead of six.

With ``--hosts`` half of the ranks are in another network namespace, which needs root.

``gloo.json`` records the tests that pass on gloo, by torch version and world size. The difference from this run is
printed, and makes the exit status 1.
"""

import argparse
import importlib
import json
import logging
import os
import re
import sys
import tempfile
import unittest
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

RECORD = Path(__file__).with_name("gloo.json")

#: Tests that need gloo's C++ name or class, so no other backend can pass them: test, reason.
ONLY_GLOO = {
    "test_ddp_logging_data_cpu": "expects DDP's logger to have read the C++ class's name, gloo",
}


def main() -> int:
    """Run the suite; return the exit status."""
    options = _options()
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(options.world_size), MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ExitStack() as undo:
        counters = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        hosts = _two_hosts(undo) if options.hosts else []
        outcomes = _run(options, counters, hosts)
        totals = _totals(counters)
    by_kind = Counter(outcomes.values())
    print(", ".join(f"{by_kind[kind]} {kind}" for kind in ("pass", "skip", "fail")), f"on {options.backend}")
    if options.backend == "blink":
        print("ran by blink:", ", ".join(f"{name} {number}" for name, number in sorted(totals.items())) or "nothing")
    if options.record:
        _record(options.world_size, outcomes)
        return 0
    if options.tests:
        return int(by_kind["fail"] > 0)
    return _compare(options, outcomes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="PyTorch's own conformance suite on backend blink or gloo")
    parser.add_argument("--world-size", type=int, default=2, help="number of ranks (default 2)")
    parser.add_argument("--backend", choices=("blink", "gloo"), default="blink")
    parser.add_argument("--hosts", action="store_true", help="two hosts, as network namespaces (needs root)")
    parser.add_argument("--tests", help="only tests whose names match this regular expression")
    parser.add_argument("--recorded", action="store_true", help="only tests that pass in gloo's record")
    parser.add_argument("--record", action="store_true", help="write the passed tests as gloo's record")
    parser.add_argument("--timeout", type=int, default=60, help="seconds per test (default 60)")
    parser.add_argument("--verbose", action="store_true", help="show the ranks' output")
    options = parser.parse_args()
    if options.record and (options.backend != "gloo" or options.tests):
        parser.error("--record writes the outcome of the whole suite on gloo: give --backend gloo and no --tests")
    return options


def _two_hosts(undo: ExitStack) -> list[str]:
    """The names of two hosts. The suite meets in a file, which knows no address of rank 0, so one is given here."""
    import several_hosts

    from blinkccl.runtime import addresses, store

    os.environ["GLOO_SOCKET_IFNAME"] = "nic"
    first = several_hosts.address(0)
    store.TorchStore.addresses = lambda _: addresses.own_addresses(first)  # type: ignore[method-assign]
    return undo.enter_context(several_hosts.hosts(2, 0))


def _run(options: argparse.Namespace, counters: Path, hosts: list[str]) -> dict[str, str]:
    """The outcomes: ``{test: "pass" | "skip" | "fail"}``."""
    suite_class = _suite_class(options, counters, hosts)
    names = [name for name in sorted(dir(suite_class)) if name.startswith("test_")]
    if options.backend == "blink":
        names = [name for name in names if name not in ONLY_GLOO]
    if options.tests:
        names = [name for name in names if re.search(options.tests, name)]
    if options.recorded:
        names = [name for name in names if name in (_recorded(options.world_size) or ())]
    result = unittest.TestResult()
    unittest.TestSuite(suite_class(name) for name in names).run(result)
    outcomes = dict.fromkeys(names, "pass")
    for test, reason in result.skipped:
        outcomes[_name(test)] = "skip"
        if options.verbose:
            print(f"skip {_name(test)}: {reason}")
    for test, trace in result.errors + result.failures:
        outcomes[_name(test)] = "fail"
        print(f"fail {_name(test)}\n{trace}")
    return outcomes


def _name(test: unittest.TestCase) -> str:
    return test.id().rsplit(".", 1)[-1]


def _suite_class(options: argparse.Namespace, counters: Path, hosts: list[str]) -> Any:
    """The suite as a test class with forked ranks on the selected backend."""
    common = importlib.import_module("torch.testing._internal.common_distributed")
    suite = importlib.import_module("torch.testing._internal.distributed.distributed_test")
    multiprocessing = importlib.import_module("torch.multiprocessing")
    common.TIMEOUT_DEFAULT = options.timeout
    common.TIMEOUT_OVERRIDE.clear()
    logging.getLogger(common.__name__).setLevel(logging.INFO if options.verbose else logging.CRITICAL)
    if options.backend == "blink":
        _alias(suite, "gloo", "blink")

    class Suite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        """One process per rank and test."""

        def setUp(self) -> None:
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, *arguments: Any, **more: Any) -> None:
            if not options.verbose:
                silence = os.open(os.devnull, os.O_WRONLY)
                os.dup2(silence, 1)
                os.dup2(silence, 2)
            if hosts:
                several_hosts = importlib.import_module("several_hosts")
                several_hosts.enter(hosts[2 * rank // options.world_size])
            try:
                super()._run(rank, *arguments, **more)
            finally:
                if options.backend == "blink":
                    _leave_counters(counters)

    return Suite


def _alias(suite: Any, alias: str, target: str) -> None:
    """Make torch use backend ``target`` wherever ``alias`` is requested, and report ``alias`` as its name.

    The suite also looks for the backend's events in profiles by name, so events of ``target`` are renamed. Python
    events cannot be marked asynchronous, so they are marked here.
    """
    dist, c10d = (importlib.import_module(f"torch.{name}") for name in ("distributed", "distributed.distributed_c10d"))
    for name in ("torch_backend", "torch_backend.process_group", "runtime.communicator"):
        importlib.import_module(f"blinkccl.{name}")  # Once, before the forks; the first registers the backend.
    torchs, find = SimpleNamespace(**vars(c10d)), suite.get_profiling_event

    def init_process_group(backend: Any = None, *arguments: Any, **more: Any) -> None:
        torchs.init_process_group(target if backend == alias else backend, *arguments, **more)

    def new_group(*arguments: Any, **more: Any) -> Any:
        if more.get("backend") == alias:
            more["backend"] = target
        return torchs.new_group(*arguments, **more)

    def get_backend(group: Any = None) -> Any:
        name = torchs.get_backend(group)
        return alias if name == target else name

    def get_profiling_event(name: str, *arguments: Any, **more: Any) -> list[Any]:
        events = find(name.replace(f"{alias}:", f"{target}:"), *arguments, **more)
        for event in events:
            event.name, event.is_async = event.name.replace(f"{target}:", f"{alias}:"), True
        return events

    suite.get_profiling_event = get_profiling_event
    for module in (dist, c10d):
        for function in (init_process_group, new_group, get_backend):
            setattr(module, function.__name__, function)


def _leave_counters(directory: Path) -> None:
    stats = importlib.import_module("blinkccl.torch_backend").stats
    (directory / str(os.getpid())).write_text(json.dumps(stats()))


def _totals(directory: Path) -> Counter[str]:
    totals: Counter[str] = Counter()
    for file in directory.iterdir():
        totals.update(json.loads(file.read_text()))
    return totals


def _key(world_size: int) -> str:
    major, minor = importlib.import_module("torch").__version__.split(".")[:2]
    return f"torch {major}.{minor}, {world_size} ranks"


def _recorded(world_size: int) -> list[str] | None:
    return next((row["pass"] for row in json.loads(RECORD.read_text()) if _key(world_size) in row["of"]), None)


def _record(world_size: int, outcomes: dict[str, str]) -> None:
    passed = {key: row["pass"] for row in json.loads(RECORD.read_text()) for key in row["of"]}
    passed[_key(world_size)] = sorted(name for name, outcome in outcomes.items() if outcome == "pass")
    lists = sorted({tuple(names) for names in passed.values()})
    rows = [{"of": sorted(key for key in passed if tuple(passed[key]) == names), "pass": names} for names in lists]
    RECORD.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")


def _compare(options: argparse.Namespace, outcomes: dict[str, str]) -> int:
    record = _recorded(options.world_size)
    if record is None:
        print(f"gloo has no record for {_key(options.world_size)}: run with --backend gloo --record first")
        return int(any(outcome == "fail" for outcome in outcomes.values()))
    passed = {name for name, outcome in outcomes.items() if outcome == "pass"}
    left_out = set(ONLY_GLOO) if options.backend == "blink" else set()
    lost = sorted(set(record) - passed - left_out)
    failed = sorted(name for name, outcome in outcomes.items() if outcome == "fail")
    for name in sorted(left_out & set(record)):
        print(f"left out: {name} ({ONLY_GLOO[name]})")
    for name in sorted(passed - set(record)):
        print(f"passes here, not on gloo: {name}")
    for name in lost:
        print(f"passes on gloo, not here: {name} ({outcomes.get(name, 'not there')})")
    print(f"gloo's record for {_key(options.world_size)}: {len(record)} pass")
    return int(bool(lost or failed))


if __name__ == "__main__":
    sys.exit(main())
