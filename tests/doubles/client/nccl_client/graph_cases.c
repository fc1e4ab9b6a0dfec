// Does one communicator's work keep its order where only NCCL orders it: between graphs, and between graphs and calls?
// And is a call refused, and nothing else broken, where the capture of its stream has failed?
#include <string.h>

#include "cases.h"

enum { kElements = 999, kLanes = 6, kWays = 6, kSteps = 8, kRegionBytes = 16384, kRounds = 3 };

// Each step reads, in another stream, what the one before wrote. g: a graph, f: a graph of two calls in two streams,
// captured at the same time as the other one, e: a call outside of graphs. And which step is the first of each.
static const char kWay[kWays + 1] = "gegfef";
static const int kFirst[kWays] = {0, 1, 2, 3, 5, 6};

struct Chain {
  cudaStream_t lane[kLanes][kMostRanks];
  CUevent event[kMostRanks];
  CUgraph graph[kWays][kMostRanks];
  CUgraphExec exec[kWays][kMostRanks];
};

static CUdeviceptr region(const struct Local* local, int number) {
  return local->recv + (CUdeviceptr)number * kRegionBytes;
}

// Sums once, and then keeps the sum: what is not there yet is negative.
static void step(struct World* world, int number, cudaStream_t* stream) {
  begin_calls(world);
  FOR_LOCALS(local) {
    NCCL(ncclAllReduce((const void*)region(local, number), (void*)region(local, number + 1), kElements, ncclInt32,
                       number ? ncclMin : ncclSum, local->comm, stream[local - world->local]));
  }
  end_calls(world);
}

static void begin_capture(struct World* world, cudaStream_t* stream) {
  FOR_LOCALS(local) {
    use(world, local);
    CU(cuda.cuStreamBeginCapture_v2(stream[local - world->local], strcmp(world->options->mode, "process") ? 1 : 0));
  }
}

// From `from` to `to`: an event, as a program uses it.
static void join_streams(struct World* world, struct Chain* chain, cudaStream_t* from, cudaStream_t* to) {
  FOR_LOCALS(local) {
    const long i = local - world->local;
    use(world, local);
    CU(cuda.cuEventRecord(chain->event[i], from[i]));
    CU(cuda.cuStreamWaitEvent(to[i], chain->event[i], 0));
  }
}

static void end_capture(struct World* world, struct Chain* chain, int way, cudaStream_t* origin) {
  FOR_LOCALS(local) {
    const long i = local - world->local;
    use(world, local);
    CU(cuda.cuStreamEndCapture(origin[i], &chain->graph[way][i]));
    CU(cuda.cuGraphInstantiateWithFlags(&chain->exec[way][i], chain->graph[way][i], 0));
  }
}

static void capture_one(struct World* world, struct Chain* chain, int way) {
  begin_capture(world, chain->lane[0]);
  step(world, kFirst[way], chain->lane[0]);
  end_capture(world, chain, way, chain->lane[0]);
}

// Two forks at once, their calls in turn. In each fork only the communicator orders the two.
static void capture_forks(struct World* world, struct Chain* chain, int one, int other) {
  const int way[2] = {one, other};
  for (int f = 0; f < 2; ++f) {
    cudaStream_t(*const lane)[kMostRanks] = chain->lane + 3 * f;
    begin_capture(world, lane[0]);
    join_streams(world, chain, lane[0], lane[1]);
    join_streams(world, chain, lane[0], lane[2]);
  }
  for (int call = 0; call < 2; ++call) {
    for (int f = 0; f < 2; ++f) step(world, kFirst[way[f]] + call, chain->lane[3 * f + 1 + call]);
  }
  for (int f = 0; f < 2; ++f) {
    cudaStream_t(*const lane)[kMostRanks] = chain->lane + 3 * f;
    join_streams(world, chain, lane[1], lane[0]);
    join_streams(world, chain, lane[2], lane[0]);
    end_capture(world, chain, way[f], lane[0]);
  }
}

static void synchronize_lanes(struct World* world, struct Chain* chain) {
  FOR_LOCALS(local) {
    use(world, local);
    for (int l = 0; l < kLanes; ++l) CU(cuda.cuStreamSynchronize(chain->lane[l][local - world->local]));
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

static void make_chain(struct World* world, struct Chain* chain) {
  FOR_LOCALS(local) {
    const long i = local - world->local;
    use(world, local);
    for (int l = 0; l < kLanes; ++l) CU(cuda.cuStreamCreate(&chain->lane[l][i], 1));
    CU(cuda.cuEventCreate(&chain->event[i], 2));
  }
  for (int way = 0; way < kWays; ++way) {
    if (kWay[way] == 'g') capture_one(world, chain, way);
  }
  capture_forks(world, chain, 3, 5);
}

static void end_chain(struct World* world, struct Chain* chain) {
  FOR_LOCALS(local) {
    const long i = local - world->local;
    use(world, local);
    for (int way = 0; way < kWays; ++way) {
      if (kWay[way] == 'e') continue;
      CU(cuda.cuGraphExecDestroy(chain->exec[way][i]));
      CU(cuda.cuGraphDestroy(chain->graph[way][i]));
    }
    for (int l = 0; l < kLanes; ++l) CU(cuda.cuStreamDestroy_v2(chain->lane[l][i]));
    CU(cuda.cuEventDestroy_v2(chain->event[i]));
  }
}

static void launch_graphs(struct World* world, CUgraphExec* exec, cudaStream_t* stream) {
  FOR_LOCALS(local) {
    use(world, local);
    CU(cuda.cuGraphLaunch(exec[local - world->local], stream[local - world->local]));
  }
}

void run_graph_order(struct World* world) {
  static const struct Call first = {kAllReduce, 999, ncclInt32, ncclSum, 0, false, false, false, 0};
  struct Chain chain;
  check(world, &first);  // whatever is set up at the first call
  make_chain(world, &chain);
  for (int round = 0; round < kRounds; ++round) {
    fill_regions(world);
    for (int way = 0; way < kWays; ++way) {
      cudaStream_t* const lane = chain.lane[(way + round) % kLanes];
      if (kWay[way] == 'e') step(world, kFirst[way], lane);
      else launch_graphs(world, chain.exec[way], lane);
    }
    synchronize_lanes(world, &chain);
    look_at_regions(world);
  }
  end_chain(world, &chain);
}

// A stream must not be waited for while it is captured: that ends the capture.
void run_graph_lost(struct World* world) {
  struct Call call = {kAllReduce, 999, ncclInt32, ncclSum, 0, false, false, false, 0};
  cudaStream_t stream[kMostRanks];
  check(world, &call);
  FOR_LOCALS(local) stream[local - world->local] = local->stream;
  begin_capture(world, stream);
  FOR_LOCALS(local) {
    use(world, local);
    if (!cuda.cuStreamSynchronize(local->stream)) wrong(world, local->rank, "a captured stream can be waited for");
  }
  ncclResult_t result = ncclSuccess;
  begin_calls(world);
  FOR_LOCALS(local) {
    const ncclResult_t called = make_call(local, &call, local->comm, local->stream);
    if (called != ncclSuccess) result = called;
  }
  if (world->locals > 1) result = ncclGroupEnd();
  ++world->checks;
  if (result != ncclUnhandledCudaError) wrong(world, world->local[0].rank, "a lost capture gives %d", (int)result);
  FOR_LOCALS(local) {
    CUgraph graph;
    use(world, local);
    if (!cuda.cuStreamEndCapture(local->stream, &graph)) wrong(world, local->rank, "a lost capture gives a graph");
  }
  for (int round = 0; round < 2; ++round) check(world, &call);
}
