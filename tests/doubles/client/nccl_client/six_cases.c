// Six communicators at once, as in training with five kinds of parallelism: world, data, tensor, pipeline, expert and
// context. Every rank launches their calls and graphs in its own order, without waits in between.
#include <stdlib.h>
#include <string.h>

#include "cases.h"

enum { kSix = 6, kElements = 1000, kRegionBytes = 8192, kBurst = 4 };

// For communicator c: ranks with the same color are in one group.
static int color_of(int c, int rank, bool all) {
  const int colors[kSix] = {0, rank % 2, rank / 2, rank % 4, rank / 4, 0};
  return all ? 0 : colors[c];
}

static unsigned drawn(unsigned* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 16;
}

struct Six {
  ncclComm_t comm[kSix][kMostRanks];
  cudaStream_t lane[kSix][kMostRanks];
  CUgraph graph[kSix + 1][kMostRanks];
  CUgraphExec exec[kSix + 1][kMostRanks];  // of two calls of one; the last: one call of each, in parallel;
  unsigned calls[kSix];                    // number of calls so far
};

static CUdeviceptr region(const struct Local* local, int c) { return local->recv + (CUdeviceptr)c * kRegionBytes; }

// Multiplies the data by the number of ranks, a power of two, so the result is exact.
static void call(struct World* world, struct Six* six, const struct Local* local, int c) {
  void* const at = (void*)region(local, c);
  NCCL(ncclAllReduce(at, at, kElements, ncclFloat32, ncclSum, six->comm[c][local->index], six->lane[c][local->index]));
}

static void capture(struct World* world, struct Six* six, const struct Local* local, int number) {
  const int i = local->index, first = number < kSix ? number : 0;
  CU(cuda.cuStreamBeginCapture_v2(six->lane[first][i], 1));
  if (number < kSix) {
    for (int twice = 0; twice < 2; ++twice) call(world, six, local, number);
  } else {
    for (int c = 1; c < kSix; ++c) {
      CU(cuda.cuEventRecord(local->event, six->lane[0][i]));
      CU(cuda.cuStreamWaitEvent(six->lane[c][i], local->event, 0));
    }
    for (int c = 0; c < kSix; ++c) call(world, six, local, c);
    for (int c = 1; c < kSix; ++c) {
      CU(cuda.cuEventRecord(local->event, six->lane[c][i]));
      CU(cuda.cuStreamWaitEvent(six->lane[0][i], local->event, 0));
    }
  }
  CU(cuda.cuStreamEndCapture(six->lane[first][i], &six->graph[number][i]));
  CU(cuda.cuGraphInstantiateWithFlags(&six->exec[number][i], six->graph[number][i], 0));
}

static void fill(struct World* world, struct Six* six) {
  float values[kElements];
  FOR_LOCALS(local) {
    use(world, local);
    for (int i = 0; i < kElements; ++i) values[i] = (float)(1 + i % 97);
    for (int c = 0; c < kSix; ++c) {
      CU(cuda.cuMemcpyHtoDAsync_v2(region(local, c), values, sizeof values, six->lane[c][local->index]));
      CU(cuda.cuStreamSynchronize(six->lane[c][local->index]));
    }
  }
  memset(six->calls, 0, sizeof six->calls);
}

// A burst: each communicator's sequence is equal on all ranks, the order among communicators is not.
static void burst(struct World* world, struct Six* six, unsigned run) {
  unsigned same = run * 7919u + 1;
  bool replays[kBurst][kSix];
  for (int b = 0; b < kBurst; ++b) {
    for (int c = 0; c < kSix; ++c) {
      replays[b][c] = drawn(&same) % 2;
      six->calls[c] += replays[b][c] ? 2 : 1;
    }
  }
  FOR_LOCALS(local) {
    unsigned own = run * 104729u + (unsigned)local->rank * 31u + 5;
    int done[kSix] = {0};
    use(world, local);
    for (int left = kBurst * kSix; left; --left) {
      int c = (int)(drawn(&own) % kSix);
      while (done[c] == kBurst) c = (c + 1) % kSix;
      if (replays[done[c]++][c]) CU(cuda.cuGraphLaunch(six->exec[c][local->index], six->lane[c][local->index]));
      else call(world, six, local, c);
    }
    CU(cuda.cuGraphLaunch(six->exec[kSix][local->index], six->lane[0][local->index]));
  }
  for (int c = 0; c < kSix; ++c) ++six->calls[c];
}

static void look(struct World* world, struct Six* six) {
  float seen[kElements];
  FOR_LOCALS(local) {
    use(world, local);
    for (int c = kSix - 1; c >= 0; --c) {
      const int i = local->index;
      int ranks;
      float factor = 1;
      NCCL(ncclCommCount(six->comm[c][i], &ranks));
      for (unsigned k = 0; k < six->calls[c]; ++k) factor *= (float)ranks;
      CU(cuda.cuStreamSynchronize(six->lane[0][i]));  // of the graph of all six
      CU(cuda.cuMemcpyDtoHAsync_v2(seen, region(local, c), sizeof seen, six->lane[c][i]));
      CU(cuda.cuStreamSynchronize(six->lane[c][i]));
      ++world->checks;
      for (int e = 0; e < kElements; ++e) {
        const float expected = factor * (float)(1 + e % 97);
        if (seen[e] == expected) continue;
        wrong(world, local->rank, "communicator %d: element %d is %g, not %g", c, e, (double)seen[e], (double)expected);
        break;
      }
    }
  }
}

// CLIENT_RUNS: number of bursts. CLIENT_SIX=all: every rank is in every communicator; else in those of its dimensions.
void run_six(struct World* world) {
  struct Six six;
  const char* const runs = getenv("CLIENT_RUNS");
  const char* const who = getenv("CLIENT_SIX");
  const bool all = who && !strcmp(who, "all");
  for (int c = 0; c < kSix; ++c) {
    make_streams(world, six.lane[c]);
    FOR_LOCALS(local) six.comm[c][local->index] = local->comm;  // the first is the world
    if (c == 0) continue;
    begin_calls(world);
    FOR_LOCALS(local) {
      NCCL(ncclCommSplit(local->comm, color_of(c, local->rank, all), 0, &six.comm[c][local->index], NULL));
    }
    end_calls(world);
  }
  fill(world, &six);
  for (int number = 0; number <= kSix; ++number) {
    FOR_LOCALS(local) {
      use(world, local);
      capture(world, &six, local, number);
    }
  }
  for (unsigned run = 0; run < (unsigned)(runs ? atoi(runs) : 1); ++run) {
    fill(world, &six);
    burst(world, &six, run);
    look(world, &six);
  }
  FOR_LOCALS(local) {
    use(world, local);
    for (int number = 0; number <= kSix; ++number) {
      CU(cuda.cuGraphExecDestroy(six.exec[number][local->index]));
      CU(cuda.cuGraphDestroy(six.graph[number][local->index]));
    }
  }
  for (int c = 0; c < kSix; ++c) {
    if (c > 0) destroy_comms(world, six.comm[c]);
    end_streams(world, six.lane[c]);
  }
}
