"""These tests detect a missing wait: a libblink.so built without it fails for some seed."""

import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from preloaded import Preloaded
from test_messages import table
from variants import with_fault

#: The fault: the client's case; the file of libblink.so; a text that occurs there once, and its replacement.
FAULTS = {
    "launches do not follow each other": (
        "streams",
        "engine.cpp",
        "  CUresult result = follow(stream, capture.id);\n",
        "  CUresult result = capture.id != 0 ? follow(stream, capture.id) : kCudaSuccess;\n",
    ),
    "the end of a launch is not noted": (
        "streams",
        "engine.cpp",
        "  const CUresult noted = note(stream, capture.id);\n",
        "  const CUresult noted = capture.id != 0 ? note(stream, capture.id) : kCudaSuccess;\n",
    ),
    "replays do not wait": (
        "graph_order",
        "engine.cpp",
        "  in_graphs_ = in_graphs_ || capture != 0;\n",
        "  if (capture != 0) return kCudaSuccess;\n",
    ),
    "the end of a replay is not noted": (
        "graph_order",
        "engine.cpp",
        "  if (mixes_) result = driver_.event_record_with_flags(event, stream, kEventExternal);\n",
        "",
    ),
    "calls of one capture do not follow each other": (
        "graph_order",
        "engine.cpp",
        "driver_.stream_wait_event(stream, earlier->event, 0);",
        "kCudaSuccess;",
    ),
    "captures at the same time are not kept apart": (
        "graph_order",
        "engine.cpp",
        "kCapturesAtOnce = 8;",
        "kCapturesAtOnce = 1;",
    ),
    "NCCL's calls do not wait for ours": (
        "graph_order",
        "engine.cpp",
        ": follow(stream, capture.id, false);\n",
        ": kCudaSuccess;\n",
    ),
    "calls do not wait for NCCL's": (
        "graph_order",
        "engine.cpp",
        "  return driver_.stream_wait_event(stream, nccl_event_, flags);",
        "  return kCudaSuccess;",
    ),
    "the end of NCCL's calls is not noted": (
        "graph_order",
        "engine.cpp",
        ": note(stream, capture.id, nccl_event_);\n",
        ": kCudaSuccess;\n",
    ),
    "calls do not wait for what NCCL enqueues later": (
        "nonblocking",
        "communicator.cpp",
        "  if (late_.exchange(false)) after_nccl(late_stream_, ncclSuccess);\n",
        "",
    ),
    "an error of a capture counts as the communicator's": (
        "graph_lost",
        "communicator.cpp",
        "  if (captured || concerns_capture(result)) {\n",
        "  if (captured) {\n",
    ),
    "copies do not wait for their message": (
        "sizes",
        "copy_engine.cpp",
        "    await(main, tail(id), position(id) + 1);\n",
        "    await(main, tail(id), 0);\n",
    ),
    "staged data are fetched before they arrive": (
        "sizes",
        "copy_engine.cpp",
        "  await(*fetch, tail(id), position(id) + 1);\n",
        "  await(*fetch, tail(id), 0);\n",
    ),
    "staged data are used before they are fetched": (
        "sizes",
        "copy_engine.cpp",
        "  follow(main, *fetch);\n",
        "  use(main);\n",
    ),
    "staged data are replaced while they are read": (
        "sizes",
        "copy_engine.cpp",
        "    good(driver_.stream_wait_event(fetch->handle, read(id), 0));\n",
        "",
    ),
    "the end of reading staged data is not recorded": (
        "sizes",
        "copy_engine.cpp",
        "    good(driver_.event_record(read(id), stream.handle));\n",
        "",
    ),
    "a slot on the host is given back while it is fetched": (
        "sizes",
        "copy_engine.cpp",
        "  copy(*fetch, received(id), slot(id), step.chunk.bytes);\n  tell(*fetch, head(id), position(id) + 1);\n",
        "  tell(*fetch, head(id), position(id) + 1);\n  copy(*fetch, received(id), slot(id), step.chunk.bytes);\n",
    ),
    "copies do not wait for a free slot": (
        "sizes",
        "copy_engine.cpp",
        "if (position(id) >= bundle_.copy_slots) await(",
        "if (false) await(",
    ),
    "copies do not wait for the caller's stream": (
        "sizes",
        "copy_engine.cpp",
        "  good(driver_.stream_wait_event(stream.handle, start_, 0));\n",
        "",
    ),
    "a message is fetched before it arrives": (
        "exchange",
        "copy_engine.cpp",
        "    await(stream, tail(id), before + 1);\n",
        "    await(stream, tail(id), 0);\n",
    ),
    "a message replaces another that is still needed": (
        "messages",
        "copy_engine.cpp",
        "    if (before >= bundle_.path_slots) await(stream, head(id), before + 1 - bundle_.path_slots);\n",
        "",
    ),
    "a message's slot is given back while it is fetched": (
        "messages",
        "copy_engine.cpp",
        "    copy(stream, piece.at, slot(id), piece.bytes);\n    tell(stream, head(id), before + 1);\n",
        "    tell(stream, head(id), before + 1);\n    copy(stream, piece.at, slot(id), piece.bytes);\n",
    ),
    "messages do not wait for all streams of their group": (
        "exchange",
        "groups.cpp",
        "  ncclResult_t joined = join_streams();\n",
        "  ncclResult_t joined = ncclSuccess;\n",
    ),
    "not all streams of a group wait for its messages": (
        "exchange",
        "groups.cpp",
        "guarded([this] { return join_streams(); });",
        "ncclSuccess;",
    ),
    "collectives do not wait for all streams of their group": (
        "streams",
        "groups.cpp",
        "  ncclResult_t joined = join_streams();\n",
        "  ncclResult_t joined = ncclSuccess;\n",
    ),
    "not all streams of a group wait for its collectives": (
        "streams",
        "groups.cpp",
        "guarded([this] { return join_streams(); });",
        "ncclSuccess;",
    ),
    "a group half in a capture counts as captured": (
        "graph_lost",
        "communicator.cpp",
        "    return ncclInvalidUsage;\n",
        "    return ncclSuccess;\n",
    ),
    "copies do not wait for what they send": (
        "sizes",
        "copy_engine.cpp",
        "      if (stream != &main) follow(*stream, main);\n",
        "      use(*stream);\n",
    ),
    "a slot is given back while it is sent from": (
        "sizes",
        "copy_engine.cpp",
        "    if (stream != &main) follow(main, *stream);\n",
        "    use(*stream);\n",
    ),
    "own data are replaced while they are read": (
        "sizes",
        "copy_engine.cpp",
        "    if (reader != step.role->main) follow(*step.role->main, *reader);\n",
        "    use(*reader);\n",
    ),
}
SEEDS = range(6)
#: Planted at the end of ``open_driver()``: a function's code is loaded by its first launch.
LATE_LOADS = """  opened.good = true;
  static Driver real;
  real = opened.functions;
  struct Late { CUmodule module; std::string name; CUfunction loaded; };
  opened.functions.module_function = [](CUfunction* out, CUmodule module, const char* name) {
    *out = reinterpret_cast<CUfunction>(new Late{module, name, nullptr});
    return kCudaSuccess;
  };
  opened.functions.occupancy = [](int* blocks, CUfunction, int, std::size_t) { return *blocks = 2, kCudaSuccess; };
  opened.functions.launch_with_attributes = [](const CUlaunchConfig* how, CUfunction function, void** one, void** two) {
    Late& late = *reinterpret_cast<Late*>(function);
    if (late.loaded == nullptr) real.module_function(&late.loaded, late.module, late.name.c_str());
    return real.launch_with_attributes(how, late.loaded, one, two);
  };
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", FAULTS)
def test_missing_event_is_noticed(preloaded: Preloaded, tmp_path: Path, fault: str) -> None:
    place = tmp_path / "variant"
    place.mkdir()
    cases, file, before, after = FAULTS[fault]
    job: dict[str, object] = {"cases": cases}
    if cases in ("messages", "exchange"):
        paths = table("cedar", tmp_path / "paths.json")
        job |= {"BLINK_TOPO": "cedar", "BLINK_PATHS": paths, "BLINK_STAGING_BYTES": "1M"}
    elif file == "copy_engine.cpp":
        job |= {"sizes": "1000,60000", "BLINK_PROTOCOL": "copies", "BLINK_STAGING_BYTES": "3M"}
        job |= {"BLINK_TOPO": "dgx-1v", "BLINK_ALGO": "one_shot" if fault.startswith("own data") else "blink"}
        if "staged" in fault or "host" in fault:
            job |= {"BLINK_TOPO": "mist", "BLINK_ALGO": "ring", "BLINK_STAGING_BYTES": "2M", "sizes": "1000,200000"}
    faulty = replace(preloaded, built=with_fault(place, {file: (before, after)}))
    for seed in SEEDS:
        preloaded.client("threads", **job, BLINK_DOUBLE_SEED=seed).right()
    for seed in SEEDS:
        # A kernel that meets another one on its connections may wait forever, so the timeout is short.
        outcome = faulty.client("threads", **job, BLINK_DOUBLE_SEED=seed, BLINK_TIMEOUT=2)
        assert any(" is loaded" in line for line in outcome.blink), outcome.blink
        if outcome.ended[0].code != 0:
            return
    pytest.fail("no seed notices it")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_kernel_that_is_loaded_late_is_noticed(preloaded: Preloaded, tmp_path: Path) -> None:
    """The driver's double aborts a program that loads code while kernels run, since they may wait for a later call."""
    place = tmp_path / "variant"
    place.mkdir()
    faulty = replace(preloaded, built=with_fault(place, {"driver.cpp": ("  opened.good = true;\n", LATE_LOADS)}))
    for seed in SEEDS:
        preloaded.client("threads", cases="several", BLINK_DOUBLE_SEED=seed).right()
    for seed in range(30):  # two kernels per wire: few loads are late, and most find an idle device
        (ended,) = faulty.client("threads", cases="several", BLINK_DOUBLE_SEED=seed, BLINK_TIMEOUT=2).ended
        if re.search(r"cuda double: \w+ is loaded while \d+ kernels run on device", ended.err):
            assert ended.code == -signal.SIGABRT
            return
        assert ended.code == 0, ended.err[-2000:]
    pytest.fail("no seed notices it")
