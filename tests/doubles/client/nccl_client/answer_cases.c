// The library rejects invalid calls.
#include <string.h>

#include "cases.h"

static void expect(struct World* world, ncclResult_t expected, ncclResult_t result, const char* call) {
  ++world->checks;
  if (result != expected) {
    wrong(world, world->local[0].rank, "%s gives %d, expected %d", call, (int)result, (int)expected);
  }
}
#define EXPECT(expected, call) expect(world, (expected), (call), #call)

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
  // A rejected call has no side effects.
  const struct Call call = {kAllReduce, 10, ncclInt32, ncclSum, 0, false, false, false, 0};
  check(world, &call);
}
