// The library answers questions and refuses what is wrong.
#include <string.h>

#include "cases.h"

static void expect(struct World* world, ncclResult_t expected, ncclResult_t result, const char* call) {
  ++world->checks;
  if (result != expected) {
    wrong(world, world->local[0].rank, "%s gives %d, expected %d", call, (int)result, (int)expected);
  }
}
#define EXPECT(expected, call) expect(world, (expected), (call), #call)

void run_queries(struct World* world) {
  int version;
  NCCL(ncclGetVersion(&version));
  ++world->checks;
  if (version < 20000) wrong(world, world->local[0].rank, "version %d", version);
  FOR_LOCALS(local) {
    int count, device, rank;
    ncclResult_t state;
    NCCL(ncclCommCount(local->comm, &count));
    NCCL(ncclCommCuDevice(local->comm, &device));
    NCCL(ncclCommUserRank(local->comm, &rank));
    NCCL(ncclCommGetAsyncError(local->comm, &state));
    ++world->checks;
    if (count != world->ranks || device != local->device || rank != local->rank || state != ncclSuccess) {
      wrong(world, local->rank, "count %d device %d rank %d state %d", count, device, rank, (int)state);
    }
  }
  for (int code = 0; code <= ncclTimeout; ++code) {
    const char* text = ncclGetErrorString((ncclResult_t)code);
    if (!text || !*text) wrong(world, world->local[0].rank, "no text for %d", code);
  }
  if (!ncclGetLastError(NULL)) wrong(world, world->local[0].rank, "no last error");
}

void run_registration(struct World* world) {
  void* buffer[kMostRanks];
  void* handle[kMostRanks];
  ncclWindow_t window[kMostRanks];
  FOR_LOCALS(local) {
    const int i = local->index;
    use(world, local);
    NCCL(ncclMemAlloc(&buffer[i], 1 << 16));
    NCCL(ncclCommRegister(local->comm, buffer[i], 1 << 16, &handle[i]));
    CU(cuda.cuMemsetD8Async((CUdeviceptr)buffer[i], 1, 1 << 16, local->stream));
  }
  begin_calls(world);
  FOR_LOCALS(local) {
    const int i = local->index;
    NCCL(ncclCommWindowRegister(local->comm, buffer[i], 1 << 16, &window[i], 1));
  }
  end_calls(world);
  begin_calls(world);
  FOR_LOCALS(local) {
    const int i = local->index;
    NCCL(ncclAllReduce(buffer[i], buffer[i], 1 << 16, ncclInt8, ncclSum, local->comm, local->stream));
  }
  end_calls(world);
  FOR_LOCALS(local) {
    const int i = local->index;
    unsigned char seen[100];
    use(world, local);
    CU(cuda.cuMemcpyDtoHAsync_v2(seen, (CUdeviceptr)buffer[i] + 65436, 100, local->stream));
    CU(cuda.cuStreamSynchronize(local->stream));
    ++world->checks;
    if (seen[0] != world->ranks || seen[99] != world->ranks) wrong(world, local->rank, "registered: %d", seen[99]);
    NCCL(ncclCommWindowDeregister(local->comm, window[i]));
    NCCL(ncclCommDeregister(local->comm, handle[i]));
    NCCL(ncclMemFree(buffer[i]));
  }
}

void run_errors(struct World* world) {
  const struct Local* local = &world->local[0];
  void* send = (void*)local->send;
  void* recv = (void*)local->recv;
  ncclComm_t comm = local->comm, made;
  ncclUniqueId id;
  int number;
  memset(&id, 0, sizeof id);
  use(world, local);
  const ncclResult_t bad = ncclInvalidArgument;
  EXPECT(bad, ncclAllReduce(send, recv, 4, ncclFloat32, ncclSum, NULL, local->stream));
  EXPECT(bad, ncclBcast(recv, 4, ncclFloat32, 0, NULL, local->stream));
  EXPECT(bad, ncclSend(send, 4, ncclFloat32, 0, NULL, local->stream));
  EXPECT(bad, ncclAllReduce(send, recv, 4, (ncclDataType_t)12, ncclSum, comm, local->stream));
  EXPECT(bad, ncclAllReduce(send, recv, 4, (ncclDataType_t)-1, ncclSum, comm, local->stream));
  EXPECT(bad, ncclAllReduce(send, recv, 4, ncclFloat32, (ncclRedOp_t)100, comm, local->stream));
  EXPECT(bad, ncclReduceScatter(send, recv, 4, ncclFloat32, (ncclRedOp_t)-1, comm, local->stream));
  EXPECT(bad, ncclAllGather(send, recv, 4, (ncclDataType_t)12, comm, local->stream));
  EXPECT(bad, ncclBroadcast(send, recv, 4, ncclFloat32, world->ranks, comm, local->stream));
  EXPECT(bad, ncclBroadcast(send, recv, 4, ncclFloat32, -1, comm, local->stream));
  EXPECT(bad, ncclReduce(send, recv, 4, ncclFloat32, ncclSum, world->ranks, comm, local->stream));
  EXPECT(bad, ncclGather(send, recv, 4, ncclFloat32, world->ranks, comm, local->stream));
  EXPECT(bad, ncclScatter(send, recv, 4, ncclFloat32, -2, comm, local->stream));
  EXPECT(bad, ncclSend(send, 4, ncclFloat32, world->ranks, comm, local->stream));
  EXPECT(bad, ncclRecv(recv, 4, ncclFloat32, -1, comm, local->stream));
  EXPECT(bad, ncclCommInitRank(&made, 0, id, 0));
  EXPECT(bad, ncclCommInitRank(&made, 2, id, 2));
  EXPECT(bad, ncclCommInitRank(&made, 2, id, -1));
  EXPECT(bad, ncclCommInitRank(NULL, 1, id, 0));
  ncclConfig_t config = config_of(1);
  config.magic = 1;
  EXPECT(bad, ncclCommInitRankConfig(&made, 1, id, 0, &config));
  EXPECT(bad, ncclCommCount(NULL, &number));
  EXPECT(bad, ncclCommCount(comm, NULL));
  EXPECT(bad, ncclCommUserRank(NULL, &number));
  EXPECT(bad, ncclCommCuDevice(NULL, &number));
  EXPECT(bad, ncclCommSplit(NULL, 0, 0, &made, NULL));
  EXPECT(bad, ncclGetUniqueId(NULL));
  EXPECT(bad, ncclGetVersion(NULL));
  EXPECT(bad, ncclRedOpDestroy(ncclSum, comm));
  EXPECT(bad, ncclCommInitAll(NULL, 1, NULL));
  EXPECT(ncclInvalidUsage, ncclGroupEnd());
  EXPECT(ncclSuccess, ncclCommDestroy(NULL));
  // What was refused left nothing behind.
  const struct Call call = {kAllReduce, 10, ncclInt32, ncclSum, 0, false, false, false, 0};
  check(world, &call);
}
