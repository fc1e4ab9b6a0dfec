"""Jobs for tests of the planner: peer info of ranks, and a driver that misbehaves on chosen pairs of GPUs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blinkccl.nccl.peer_info import GpuJob, read_peer_info

#: A CUDA driver of eight GPUs whose copies are memcpy. FAKE_PAIRS="1-2:hang,0-1:crash,2-0:lose,3-1:deny,2-1:full"
#: spoils some.
DRIVER = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int current[16], depth;
static char *memory[8][64];
static int blocks[8];
static const char *spoiled(int a, int b) {
  static char found[32];
  const char *text = getenv("FAKE_PAIRS");
  char name[16];
  snprintf(name, sizeof name, "%d-%d:", a, b);
  const char *at = text ? strstr(text, name) : NULL;
  if (!at) return "";
  snprintf(found, sizeof found, "%.*s", (int)strcspn(at + strlen(name), ","), at + strlen(name));
  return found;
}
static int owner(uint64_t at) {
  for (int d = 0; d < 8; ++d)
    for (int i = 0; i < blocks[d]; ++i)
      if ((uint64_t)(uintptr_t)memory[d][i] == at) return d;
  return -1;
}
int cuInit(unsigned f) { return getenv("FAKE_NO_GPU") ? 100 : 0; }
int cuGetErrorName(int e, const char **t) { *t = e == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OTHER"; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return i < 8 ? 0 : 101; }
int cuDeviceGetUuid_v2(char *u, int d) { memset(u, 0, 16); u[15] = (char)d; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 20 && getenv("FAKE_EXCLUSIVE") ? 3 : 0; return 0; }
int cuDeviceCanAccessPeer(int *can, int a, int b) { *can = strcmp(spoiled(a, b), "deny") != 0; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) {
  const char *fails = getenv("FAKE_NO_CONTEXT"); /* "1:101": device 1 has none to give, and says 101 */
  *c = (void *)(uintptr_t)(d + 1);
  return fails && fails[0] - '0' == d ? atoi(fails + 2) : 0;
}
int cuCtxPushCurrent_v2(void *c) { current[depth++] = (int)(uintptr_t)c - 1; return 0; }
int cuCtxPopCurrent_v2(void **c) { --depth; return 0; }
int cuCtxEnablePeerAccess(void *c, unsigned f) {
  return strcmp(spoiled(current[depth - 1], (int)(uintptr_t)c - 1), "full") ? 0 : 2;
}
int cuStreamCreate(void **s, unsigned f) { *s = (void *)8; return 0; }
int cuStreamSynchronize(void *s) { return 0; }
int cuMemAlloc_v2(uint64_t *p, size_t n) {
  int d = current[depth - 1];
  char *got = calloc(1, n);
  memory[d][blocks[d]++] = got;
  *p = (uint64_t)(uintptr_t)got;
  return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s) {
  memcpy((void *)(uintptr_t)to, from, n); return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s) {
  memcpy(to, (void *)(uintptr_t)from, n); return 0;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *s) {
  const char *how = spoiled(owner(from), owner(to));
  if (!strcmp(how, "hang")) sleep(1000);
  if (!strcmp(how, "crash")) abort();
  if (!strcmp(how, "error")) return 999;
  memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, !strcmp(how, "lose") ? n - 3 : n);
  return 0;
}
"""


def peer(rank: int, **changes: Any) -> dict[str, Any]:
    """Rank ``rank`` on GPU ``rank`` of a host."""
    device = changes.get("device", rank)
    return {
        "rank": rank,
        "boot_id": "0d15ea5e-0000",
        "pid": 4000 + rank,
        "device": device,
        "uuid": f"{device:032x}",
        "bus_id": f"0000:{device:02x}:00.0",
        "name": "A GPU",
        "major": 9,
        "minor": 0,
        "multiprocessors": 132,
        "driver_version": 13000,
        "nccl_version": 23007,
        "blink_version": "unknown",
        "arch": "sm_90",
        "settings": {"algo": "", "topo": "", "nccl_topo_file": ""},
    } | changes


def peers(size: int, **changes: Any) -> list[dict[str, Any]]:
    """Ranks 0 … size − 1; ``changes`` may hold functions of the rank."""
    return [
        peer(rank, **{key: value(rank) if callable(value) else value for key, value in changes.items()})
        for rank in range(size)
    ]


def settings(**chosen: str) -> dict[str, str]:
    return {"algo": "", "topo": "", "nccl_topo_file": ""} | chosen


def job(size: int, **changes: Any) -> GpuJob:
    return read_peer_info(json.dumps(peers(size, **changes)).encode())


def on(topo: str, devices: Sequence[int], **changes: Any) -> GpuJob:
    """A job on GPUs of a machine of the catalogue."""
    usual: dict[str, Any] = {
        "device": lambda rank: devices[rank],
        "uuid": lambda rank: f"{devices[rank]:032x}",
        "bus_id": lambda rank: f"0000:{devices[rank]:02x}:00.0",
        "settings": settings(topo=topo),
    }
    return job(len(devices), **(usual | changes))


def fake_driver(directory: Path) -> Path | None:
    """The library of :data:`DRIVER`; None where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    source, library = directory / "driver.c", directory / "libfakecuda.so"
    source.write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    return library
