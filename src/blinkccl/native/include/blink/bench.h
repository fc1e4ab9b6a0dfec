// Messages between the coordinator of a benchmark and its rank processes; blinkccl/bench/protocol.py defines their
// meaning. All numbers are little-endian and unpadded.
#ifndef BLINK_BENCH_H
#define BLINK_BENCH_H

#include <stdint.h>

#include "blink/types.h"

#define PEER_MAGIC 0x4B4E4C42
#define PEER_VERSION 1

// PEER_PROGRAM and PEER_CHOICE are sent only to ranks of blink-ccl.
enum peer_kind { PEER_RUN = 1, PEER_QUIT = 2, PEER_PROGRAM = 3, PEER_CHOICE = 4 };
enum peer_flag { PEER_IN_PLACE = 1, PEER_SHARED = 2, PEER_CHECK = 4, PEER_KEEP = 8, PEER_WITH_BARRIER = 16 };
enum peer_status { PEER_OK = 0, PEER_UNSUPPORTED = 1, PEER_FAILED = 2 };
// Tests of the probe, in addition to blink_collective.
enum peer_probe { PEER_PROBE_ADD = 64, PEER_PROBE_COPY, PEER_PROBE_ROUND_TRIP };
// In addition to blink_operation: a sum with a divisor, and one with scales.
enum peer_op { PEER_AVG = 7, PEER_PREMUL_SUM };

struct __attribute__((packed)) peer_hello {
  uint32_t magic, version, rank, world_size;
  uint64_t pid;
  char library[128];
};
struct __attribute__((packed)) peer_command {
  uint32_t magic, kind, collective, dtype, op;
  int32_t root, src, dst;
  uint32_t flags, warmup, iterations, deadline_s, itemsize, in_blocks, out_blocks, in_at, out_at;
  uint64_t count, period;
  double scale;
};
struct __attribute__((packed)) peer_reply {
  uint32_t magic, status;
  uint64_t wrong;
  uint32_t n, length;
};

#endif
