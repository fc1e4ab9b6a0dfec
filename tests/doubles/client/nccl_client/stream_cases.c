// Is the order of streams kept, in launches and in graphs?
#include <stdlib.h>
#include <string.h>

#include "cases.h"

static const struct Call kSmall = {kAllReduce, 999, ncclFloat32, ncclSum, 0, false, false, false, 0};

// Input is made in one stream, reduced in a second, read in a third: only events order them.
void run_streams(struct World* world) {
  cudaStream_t second[kMostRanks], third[kMostRanks];
  CUevent event[kMostRanks];
  FOR_LOCALS(local) {
    const long i = local - world->local;
    use(world, local);
    CU(cuda.cuStreamCreate(&second[i], 1));
    CU(cuda.cuStreamCreate(&third[i], 1));
    CU(cuda.cuEventCreate(&event[i], 2));
  }
  for (int round = 0; round < 6; ++round) {
    struct Call call = kSmall;
    call.kind = round % 2 ? kAllReduce : kAllGather;
    call.in_place = round % 3 == 1;
    FOR_LOCALS(local) {
      const long i = local - world->local;
      put_in(world, local, &call, local->stream);
      CU(cuda.cuEventRecord(event[i], local->stream));
      CU(cuda.cuStreamWaitEvent(second[i], event[i], 0));
    }
    begin_calls(world);
    FOR_LOCALS(local) NCCL(make_call(local, &call, local->comm, second[local - world->local]));
    end_calls(world);
    FOR_LOCALS(local) {
      const long i = local - world->local;
      use(world, local);
      CU(cuda.cuEventRecord(event[i], second[i]));
      CU(cuda.cuStreamWaitEvent(third[i], event[i], 0));
    }
    FOR_LOCALS(local) look_at(world, local, &call, third[local - world->local]);
  }
  // Two calls of one communicator in two streams run in the order of the calls: the second reads what the first wrote.
  struct Call first = kSmall, next = kSmall;
  next.kind = kBroadcast;
  FOR_LOCALS(local) {
    const long i = local - world->local;
    put_in(world, local, &first, local->stream);
    CU(cuda.cuEventRecord(event[i], local->stream));
    CU(cuda.cuStreamWaitEvent(second[i], event[i], 0));
  }
  begin_calls(world);
  FOR_LOCALS(local) NCCL(make_call(local, &first, local->comm, second[local - world->local]));
  end_calls(world);
  begin_calls(world);
  FOR_LOCALS(local) {
    const struct Place place = place_of(world, local, &first);
    NCCL(ncclBroadcast((const void*)place.recv, (void*)place.recv, next.count, next.type, 0, local->comm,
                       third[local - world->local]));
  }
  end_calls(world);
  FOR_LOCALS(local) look_at(world, local, &first, third[local - world->local]);
  // Calls of one group in several streams: each stream goes on when all is done.
  FOR_LOCALS(local) {
    const long i = local - world->local;
    put_in(world, local, &first, second[i]);
    CU(cuda.cuEventRecord(event[i], second[i]));
    CU(cuda.cuStreamWaitEvent(third[i], event[i], 0));
  }
  NCCL(ncclGroupStart());
  FOR_LOCALS(local) {
    const long i = local - world->local;
    const struct Place place = place_of(world, local, &first);
    NCCL(make_call(local, &first, local->comm, second[i]));
    NCCL(ncclAllReduce((const void*)(local->send + kBufferBytes / 2), (void*)(local->recv + kBufferBytes / 2), 10,
                       ncclInt32, ncclSum, local->comm, third[i]));
    (void)place;
  }
  NCCL(ncclGroupEnd());
  FOR_LOCALS(local) {
    const long i = local - world->local;
    look_at(world, local, &first, third[i]);
    CU(cuda.cuStreamSynchronize(second[i]));
    CU(cuda.cuStreamSynchronize(third[i]));
    CU(cuda.cuEventDestroy_v2(event[i]));
    CU(cuda.cuStreamDestroy_v2(second[i]));
    CU(cuda.cuStreamDestroy_v2(third[i]));
  }
}

// The default stream of each device: handle 0.
void run_legacy_stream(struct World* world) {
  struct Call call = kSmall;
  synchronize(world);
  FOR_LOCALS(local) put_in(world, local, &call, NULL);
  begin_calls(world);
  FOR_LOCALS(local) {
    use(world, local);
    NCCL(make_call(local, &call, local->comm, NULL));
  }
  end_calls(world);
  FOR_LOCALS(local) look_at(world, local, &call, NULL);
}

// Several communicators over the same devices, interleaved.
void run_several(struct World* world) {
  ncclComm_t more[3][kMostRanks];
  cudaStream_t stream[3][kMostRanks];
  for (int m = 0; m < 3; ++m) {
    make_comms(world, more[m], NULL);
    FOR_LOCALS(local) {
      use(world, local);
      CU(cuda.cuStreamCreate(&stream[m][local - world->local], 1));
    }
  }
  for (int round = 0; round < 3; ++round) {
    struct Call calls[3];
    for (int m = 0; m < 3; ++m) {
      calls[m] = kSmall;
      calls[m].kind = (enum Kind)((m * 2 + round) % kKinds);
      FOR_LOCALS(local) {
        struct Local part = *local;
        part.send += (CUdeviceptr)m * (kBufferBytes / 4);
        part.recv += (CUdeviceptr)m * (kBufferBytes / 4);
        put_in(world, &part, &calls[m], stream[m][local - world->local]);
      }
    }
    for (int m = 0; m < 3; ++m) {
      begin_calls(world);
      FOR_LOCALS(local) {
        struct Local part = *local;
        part.send += (CUdeviceptr)m * (kBufferBytes / 4);
        part.recv += (CUdeviceptr)m * (kBufferBytes / 4);
        const long i = local - world->local;
        NCCL(make_call(&part, &calls[m], more[m][i], stream[m][i]));
      }
      end_calls(world);
    }
    for (int m = 2; m >= 0; --m) {
      FOR_LOCALS(local) {
        struct Local part = *local;
        part.send += (CUdeviceptr)m * (kBufferBytes / 4);
        part.recv += (CUdeviceptr)m * (kBufferBytes / 4);
        look_at(world, &part, &calls[m], stream[m][local - world->local]);
      }
    }
  }
  for (int m = 0; m < 3; ++m) {
    FOR_LOCALS(local) {
      const long i = local - world->local;
      use(world, local);
      NCCL(ncclCommDestroy(more[m][i]));
      CU(cuda.cuStreamDestroy_v2(stream[m][i]));
    }
  }
}

static void replay(struct World* world, const struct Call* call, CUgraphExec* exec, int times) {
  for (int round = 0; round < times; ++round) {
    FOR_LOCALS(local) put_in(world, local, call, local->stream);
    FOR_LOCALS(local) {
      use(world, local);
      CU(cuda.cuGraphLaunch(exec[local - world->local], local->stream));
    }
    FOR_LOCALS(local) look_at(world, local, call, local->stream);
  }
}

// Captured once, run several times, with calls outside the graph between.
static void capture_and_replay(struct World* world, const struct Call* call, bool fork) {
  CUgraph graph[kMostRanks];
  CUgraphExec exec[kMostRanks];
  cudaStream_t side[kMostRanks];
  CUevent event[kMostRanks];
  check(world, call);  // whatever is set up at the first call
  FOR_LOCALS(local) {
    const long i = local - world->local;
    use(world, local);
    CU(cuda.cuStreamCreate(&side[i], 1));
    CU(cuda.cuEventCreate(&event[i], 2));
    CU(cuda.cuStreamBeginCapture_v2(local->stream, strcmp(world->options->mode, "process") ? 1 : 0));
    if (fork) {
      CU(cuda.cuEventRecord(event[i], local->stream));
      CU(cuda.cuStreamWaitEvent(side[i], event[i], 0));
    }
  }
  begin_calls(world);
  FOR_LOCALS(local) NCCL(make_call(local, call, local->comm, fork ? side[local - world->local] : local->stream));
  end_calls(world);
  FOR_LOCALS(local) {
    const long i = local - world->local;
    use(world, local);
    if (fork) {
      CU(cuda.cuMemsetD8Async(local->send + kBufferBytes - 64, 1, 64, local->stream));
      CU(cuda.cuEventRecord(event[i], side[i]));
      CU(cuda.cuStreamWaitEvent(local->stream, event[i], 0));
    }
    CU(cuda.cuStreamEndCapture(local->stream, &graph[i]));
    CU(cuda.cuGraphInstantiateWithFlags(&exec[i], graph[i], 0));
  }
  replay(world, call, exec, 3);
  check(world, &kSmall);
  replay(world, call, exec, 2);
  FOR_LOCALS(local) {
    const long i = local - world->local;
    use(world, local);
    CU(cuda.cuGraphExecDestroy(exec[i]));
    CU(cuda.cuGraphDestroy(graph[i]));
    CU(cuda.cuEventDestroy_v2(event[i]));
    CU(cuda.cuStreamDestroy_v2(side[i]));
  }
}

void run_graph(struct World* world) {
  static const enum Kind kinds[] = {kAllReduce, kBroadcast, kReduceScatter, kAllGather};
  for (int k = 0; k < 4; ++k) {
    struct Call call = kSmall;
    call.kind = kinds[k];
    call.count = k == 0 ? 5000 : 300;
    capture_and_replay(world, &call, false);
  }
}

void run_graph_fork(struct World* world) { capture_and_replay(world, &kSmall, true); }
