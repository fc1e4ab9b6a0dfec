// One communicator's calls keep their order if only NCCL orders them: between graphs, and between graphs and calls. A
// call whose stream capture has failed is rejected without other effects.
#include <string.h>

#include "cases.h"

static const struct Call kCall = {kAllReduce, 999, ncclInt32, ncclSum, 0, false, false, false, 0};

enum { kElements = 999, kLanes = 6, kWays = 8, kSteps = 10, kRegionBytes = 16384, kRounds = 3 };

// The steps of run_graph_order. Each reads, in another stream, the data that the previous one wrote. g: a graph, f: a
// graph of two calls in two streams, captured at the same time as the other one, e: a call outside of graphs. Also the
// first step of each.
static const char kWay[kWays + 1] = "gegfefee";
static const int kFirst[kWays] = {0, 1, 2, 3, 5, 6, 8, 9};
// Steps that are messages, which NCCL serves: alone after a graph and before one, after another call of their graph and
// before one, between calls.
static bool is_message(int number) { return number == 1 || number == 4 || number == 6 || number == 8; }

struct Graphs {
  CUgraph graph[kMostRanks];
  CUgraphExec exec[kMostRanks];
};

struct Chain {
  cudaStream_t lane[kLanes][kMostRanks];
  struct Graphs graphs[kWays];
};

static void begin_capture(struct World* world, cudaStream_t* stream) {
  FOR_LOCALS(local) {
    use(world, local);
    CU(cuda.cuStreamBeginCapture_v2(stream[local->index], strcmp(world->options->mode, "process") ? 1 : 0));
  }
}

static void end_capture(struct World* world, cudaStream_t* origin, struct Graphs* out) {
  FOR_LOCALS(local) {
    const int i = local->index;
    use(world, local);
    CU(cuda.cuStreamEndCapture(origin[i], &out->graph[i]));
    CU(cuda.cuGraphInstantiateWithFlags(&out->exec[i], out->graph[i], 0));
  }
}

static void launch(struct World* world, const struct Graphs* graphs, cudaStream_t* stream) {
  FOR_LOCALS(local) {
    use(world, local);
    CU(cuda.cuGraphLaunch(graphs->exec[local->index], stream[local->index]));
  }
}

static void end_graphs(struct World* world, struct Graphs* graphs) {
  FOR_LOCALS(local) {
    use(world, local);
    CU(cuda.cuGraphExecDestroy(graphs->exec[local->index]));
    CU(cuda.cuGraphDestroy(graphs->graph[local->index]));
  }
}

static void replay(struct World* world, const struct Call* call, const struct Graphs* graphs, int times) {
  for (int round = 0; round < times; ++round) {
    FOR_LOCALS(local) put_in(world, local, call, local->stream);
    launch(world, graphs, world->own);
    FOR_LOCALS(local) look_at(world, local, call, local->stream);
  }
}

// Captured once, and run several times with calls between the runs.
static void capture_and_replay(struct World* world, const struct Call* call, bool fork) {
  struct Graphs graphs;
  cudaStream_t side[kMostRanks];
  check(world, call);  // completes the setup of the first call
  make_streams(world, side);
  begin_capture(world, world->own);
  if (fork) follow(world, world->own, side);
  call_all(world, call, NULL, fork ? side : world->own);
  if (fork) {
    FOR_LOCALS(local) {
      use(world, local);
      CU(cuda.cuMemsetD8Async(local->send + kBufferBytes - 64, 1, 64, local->stream));
    }
    follow(world, side, world->own);
  }
  end_capture(world, world->own, &graphs);
  replay(world, call, &graphs, 3);
  check(world, &kCall);
  replay(world, call, &graphs, 2);
  end_graphs(world, &graphs);
  end_streams(world, side);
}

void run_graph(struct World* world) {
  static const enum Kind kinds[] = {kAllReduce, kBroadcast, kReduceScatter, kAllGather};
  for (int k = 0; k < 4; ++k) {
    struct Call call = kCall;
    call.kind = kinds[k];
    call.count = k == 0 ? 5000 : 300;
    capture_and_replay(world, &call, false);
  }
}

void run_graph_fork(struct World* world) { capture_and_replay(world, &kCall, true); }

static CUdeviceptr region(const struct Local* local, int number) {
  return local->recv + (CUdeviceptr)number * kRegionBytes;
}

// Sums once, and then forwards the sum, which all ranks have; data that are not complete are negative.
static void step(struct World* world, int number, cudaStream_t* stream) {
  begin_calls(world);
  FOR_LOCALS(local) {
    if (is_message(number)) {
      const int n = world->ranks, i = local->index;
      NCCL(ncclGroupStart());
      NCCL(ncclSend((const void*)region(local, number), kElements, ncclInt32, (local->rank + 1) % n, local->comm,
                    stream[i]));
      NCCL(ncclRecv((void*)region(local, number + 1), kElements, ncclInt32, (local->rank + n - 1) % n, local->comm,
                    stream[i]));
      NCCL(ncclGroupEnd());
      continue;
    }
    NCCL(ncclAllReduce((const void*)region(local, number), (void*)region(local, number + 1), kElements, ncclInt32,
                       number ? ncclMin : ncclSum, local->comm, stream[local->index]));
  }
  end_calls(world);
}

static void capture_one(struct World* world, struct Chain* chain, int way) {
  begin_capture(world, chain->lane[0]);
  step(world, kFirst[way], chain->lane[0]);
  end_capture(world, chain->lane[0], &chain->graphs[way]);
}

// Two forks at once, with alternating calls. In each fork only the communicator orders the two.
static void capture_forks(struct World* world, struct Chain* chain, int one, int other) {
  const int way[2] = {one, other};
  for (int f = 0; f < 2; ++f) {
    cudaStream_t(*const lane)[kMostRanks] = chain->lane + 3 * f;
    begin_capture(world, lane[0]);
    follow(world, lane[0], lane[1]);
    follow(world, lane[0], lane[2]);
  }
  for (int call = 0; call < 2; ++call) {
    for (int f = 0; f < 2; ++f) step(world, kFirst[way[f]] + call, chain->lane[3 * f + 1 + call]);
  }
  for (int f = 0; f < 2; ++f) {
    cudaStream_t(*const lane)[kMostRanks] = chain->lane + 3 * f;
    follow(world, lane[1], lane[0]);
    follow(world, lane[2], lane[0]);
    end_capture(world, lane[0], &chain->graphs[way[f]]);
  }
}

static void fill_regions(struct World* world) {
  int values[kElements];
  FOR_LOCALS(local) {
    for (int i = 0; i < kElements; ++i) values[i] = local->rank + i % 5;
    use(world, local);
    CU(cuda.cuMemsetD8Async(local->recv, 0xee, (kSteps + 1) * kRegionBytes, local->stream));
    CU(cuda.cuMemcpyHtoDAsync_v2(region(local, 0), values, sizeof values, local->stream));
  }
  synchronize(world);
}

static void look_at_regions(struct World* world) {
  int seen[kElements];
  const int others = world->ranks * (world->ranks - 1) / 2;
  FOR_LOCALS(local) {
    use(world, local);
    for (int number = 1; number <= kSteps; ++number) {
      CU(cuda.cuMemcpyDtoHAsync_v2(seen, region(local, number), sizeof seen, local->stream));
      CU(cuda.cuStreamSynchronize(local->stream));
      ++world->checks;
      for (int i = 0; i < kElements; ++i) {
        const int expected = world->ranks * (i % 5) + others;
        if (seen[i] == expected) continue;
        wrong(world, local->rank, "step %d: element %d is %d, not %d", number, i, seen[i], expected);
        break;
      }
    }
  }
}

void run_graph_order(struct World* world) {
  struct Chain chain;
  check(world, &kCall);  // completes the setup of the first call
  for (int l = 0; l < kLanes; ++l) make_streams(world, chain.lane[l]);
  for (int way = 0; way < kWays; ++way) {
    if (kWay[way] == 'g') capture_one(world, &chain, way);
  }
  capture_forks(world, &chain, 3, 5);
  for (int round = 0; round < kRounds; ++round) {
    fill_regions(world);
    for (int way = 0; way < kWays; ++way) {
      cudaStream_t* const lane = chain.lane[(way + round) % kLanes];
      if (kWay[way] == 'e') step(world, kFirst[way], lane);
      else launch(world, &chain.graphs[way], lane);
    }
    for (int l = 0; l < kLanes; ++l) {
      FOR_LOCALS(local) {
        use(world, local);
        CU(cuda.cuStreamSynchronize(chain.lane[l][local->index]));
      }
    }
    look_at_regions(world);
  }
  for (int way = 0; way < kWays; ++way) {
    if (kWay[way] != 'e') end_graphs(world, &chain.graphs[way]);
  }
  for (int l = 0; l < kLanes; ++l) end_streams(world, chain.lane[l]);
}

// Either the same graph captures all streams of a group's calls, or none is captured.
static void in_half_a_capture(struct World* world) {
  cudaStream_t others[kMostRanks];
  make_streams(world, others);
  begin_capture(world, world->own);
  NCCL(ncclGroupStart());
  FOR_LOCALS(local) {
    NCCL(make_call(local, &kCall, local->comm, local->stream));
    NCCL(make_call(local, &kCall, local->comm, others[local->index]));
  }
  const ncclResult_t result = ncclGroupEnd();
  ++world->checks;
  if (result != ncclInvalidUsage) wrong(world, world->local[0].rank, "half a capture gives %d", (int)result);
  FOR_LOCALS(local) {
    CUgraph graph;
    use(world, local);
    CU(cuda.cuStreamEndCapture(local->stream, &graph));
    CU(cuda.cuGraphDestroy(graph));
  }
  end_streams(world, others);
}

static void refused(struct World* world, cudaStream_t* stream, const char* what) {
  ncclResult_t result = ncclSuccess;
  begin_calls(world);
  FOR_LOCALS(local) {
    const ncclResult_t called = make_call(local, &kCall, local->comm, stream ? stream[local->index] : NULL);
    if (called != ncclSuccess) result = called;
  }
  if (world->locals > 1) result = ncclGroupEnd();
  ++world->checks;
  if (result != ncclUnhandledCudaError) wrong(world, world->local[0].rank, "%s gives %d", what, (int)result);
}

// The default stream waits for captured streams, which is an error.
static void on_the_legacy_stream(struct World* world) {
  cudaStream_t blocking[kMostRanks];
  FOR_LOCALS(local) {
    use(world, local);
    CU(cuda.cuStreamCreate(&blocking[local->index], 0));
  }
  begin_capture(world, blocking);
  refused(world, NULL, "the legacy stream beside a capture");
  FOR_LOCALS(local) {
    CUgraph graph;
    use(world, local);
    if (!cuda.cuStreamEndCapture(blocking[local->index], &graph)) CU(cuda.cuGraphDestroy(graph));
  }
  end_streams(world, blocking);
}

// A captured stream must not be waited for: that invalidates the capture.
void run_graph_lost(struct World* world) {
  check(world, &kCall);
  on_the_legacy_stream(world);
  check(world, &kCall);
  in_half_a_capture(world);
  begin_capture(world, world->own);
  FOR_LOCALS(local) {
    use(world, local);
    if (!cuda.cuStreamSynchronize(local->stream)) wrong(world, local->rank, "a captured stream can be waited for");
  }
  refused(world, world->own, "a lost capture");
  FOR_LOCALS(local) {
    CUgraph graph;
    use(world, local);
    if (!cuda.cuStreamEndCapture(local->stream, &graph)) wrong(world, local->rank, "a lost capture gives a graph");
  }
  for (int round = 0; round < 2; ++round) check(world, &kCall);
}
