// Creation and destruction of communicators.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"

static const struct Call kSome = {kAllReduce, 321, ncclFloat32, ncclSum, 0, false, false, false, 0};

// One collective on other communicators than the world's, by local rank; NULL: in none.
static void check_on(struct World* world, const struct Call* call, ncclComm_t* comms) {
  struct World there = *world;
  there.locals = 0;
  there.failures = there.checks = 0;
  FOR_LOCALS(local) {
    const ncclComm_t comm = comms[local->index];
    if (!comm) continue;
    struct Local* other = &there.local[there.locals++];
    *other = *local;
    other->comm = comm;
  }
  // Ranks of one thread may be in communicators of different sizes.
  for (int i = 0; i < there.locals; ++i) {
    NCCL(ncclCommUserRank(there.local[i].comm, &there.local[i].rank));
    NCCL(ncclCommCount(there.local[i].comm, &there.ranks));
    put_in(&there, &there.local[i], call, there.local[i].stream);
  }
  NCCL(ncclGroupStart());
  for (int i = 0; i < there.locals; ++i) {
    NCCL(make_call(&there.local[i], call, there.local[i].comm, there.local[i].stream));
  }
  NCCL(ncclGroupEnd());
  for (int i = 0; i < there.locals; ++i) {
    NCCL(ncclCommCount(there.local[i].comm, &there.ranks));
    look_at(&there, &there.local[i], call, there.local[i].stream);
  }
  world->failures += there.failures;
  world->checks += there.checks;
}

void run_split(struct World* world) {
  ncclComm_t child[kMostRanks], grandchild[kMostRanks];
  for (int way = 0; way < 3; ++way) {  // all; even and odd, reversed; all but the last
    begin_calls(world);
    FOR_LOCALS(local) {
      const int last = local->rank == world->ranks - 1;
      const int color = way == 0 ? 7 : way == 1 ? local->rank % 2 : last ? NCCL_SPLIT_NOCOLOR : 0;
      NCCL(ncclCommSplit(local->comm, color, way == 1 ? -local->rank : 0, &child[local->index], NULL));
    }
    end_calls(world);
    FOR_LOCALS(local) {
      const ncclComm_t comm = child[local->index];
      const int last = local->rank == world->ranks - 1, n = world->ranks;
      int rank, count;
      if (way == 2 && last) {
        if (comm) wrong(world, local->rank, "no color, but a communicator");
        continue;
      }
      NCCL(ncclCommUserRank(comm, &rank));
      NCCL(ncclCommCount(comm, &count));
      const int evens = (n + 1) / 2, members = way == 0 ? n : way == 1 ? (local->rank % 2 ? n / 2 : evens) : n - 1;
      const int place = way == 1 ? members - 1 - local->rank / 2 : local->rank;
      ++world->checks;
      if (rank != place || count != members) {
        wrong(world, local->rank, "split: rank %d of %d, expected %d of %d", rank, count, place, members);
      }
    }
    check_on(world, &kSome, child);
    if (way == 0) {  // a child of a child
      begin_calls(world);
      FOR_LOCALS(local) {
        NCCL(ncclCommSplit(child[local->index], 0, local->rank, &grandchild[local->index], NULL));
      }
      end_calls(world);
      check_on(world, &kSome, grandchild);
      destroy_comms(world, grandchild);
    }
    destroy_comms(world, child);
    check(world, &kSome);  // the parent continues to work
  }
}

void run_shrink(struct World* world) {
  if (world->ranks < 2) return;
  ncclComm_t less[kMostRanks];
  memset(less, 0, sizeof less);
  int gone = world->ranks - 1;
  begin_calls(world);
  FOR_LOCALS(local) {
    if (local->rank != gone) {
      NCCL(ncclCommShrink(local->comm, &gone, 1, &less[local->index], NULL, 0));
    }
  }
  end_calls(world);
  check_on(world, &kSome, less);
  destroy_comms(world, less);
}

// All but the last rank form a communicator, which the last one joins.
void run_grow(struct World* world) {
  if (world->ranks < 2) return;
  ncclComm_t less[kMostRanks], whole[kMostRanks];
  memset(less, 0, sizeof less);
  const int last = world->ranks - 1;
  begin_calls(world);
  FOR_LOCALS(local) {
    const int color = local->rank == last ? NCCL_SPLIT_NOCOLOR : 0;
    NCCL(ncclCommSplit(local->comm, color, 0, &less[local->index], NULL));
  }
  end_calls(world);
  const ncclUniqueId id = next_id(world);
  begin_calls(world);
  FOR_LOCALS(local) {
    const int i = local->index;
    use(world, local);
    NCCL(ncclCommGrow(less[i], world->ranks, local->rank == 0 || local->rank == last ? &id : NULL,
                      local->rank == last ? last : -1, &whole[i], NULL));
  }
  end_calls(world);
  check_on(world, &kSome, whole);
  destroy_comms(world, whole);
  destroy_comms(world, less);
}

static void in_time(struct World* world, ncclResult_t result) {
  if (result != ncclInProgress) NCCL(result);
}

// A call on one stream sums the data of messages on another one, which NCCL enqueues when their call has returned.
static void sum_of_messages(struct World* world, ncclComm_t* comm, cudaStream_t* other) {
  const int n = world->ranks;
  FOR_LOCALS(local) {
    put_in(world, local, &kSome, local->stream);
    CU(cuda.cuMemsetD8Async(local->send + kBufferBytes / 2, 0xee, kSome.count * 4, local->stream));
  }
  follow(world, world->own, other);
  NCCL(ncclGroupStart());
  FOR_LOCALS(local) {
    const int i = local->index, to = (local->rank + 1) % n, from = (local->rank + n - 1) % n;
    const void* const sent = (const void*)place_of(world, local, &kSome).send;
    in_time(world, ncclSend(sent, kSome.count, kSome.type, to, comm[i], other[i]));
    in_time(world, ncclRecv((void*)(local->send + kBufferBytes / 2), kSome.count, kSome.type, from, comm[i], other[i]));
  }
  in_time(world, ncclGroupEnd());
  FOR_LOCALS(local) NCCL(settled(comm[local->index]));
  NCCL(ncclGroupStart());
  FOR_LOCALS(local) {
    void* const sum = (void*)place_of(world, local, &kSome).recv;
    in_time(world, ncclAllReduce((const void*)(local->send + kBufferBytes / 2), sum, kSome.count, kSome.type, kSome.op,
                                 comm[local->index], local->stream));
  }
  in_time(world, ncclGroupEnd());
  FOR_LOCALS(local) NCCL(settled(comm[local->index]));
  FOR_LOCALS(local) look_at(world, local, &kSome, local->stream);
}

void run_nonblocking(struct World* world) {
  ncclComm_t comm[kMostRanks];
  cudaStream_t other[kMostRanks];
  ncclConfig_t config = config_of(0);
  make_comms(world, comm, &config);
  for (int round = 0; round < 3; ++round) {
    FOR_LOCALS(local) put_in(world, local, &kSome, local->stream);
    if (world->locals > 1) NCCL(ncclGroupStart());
    FOR_LOCALS(local) in_time(world, make_call(local, &kSome, comm[local->index], local->stream));
    if (world->locals > 1) in_time(world, ncclGroupEnd());
    FOR_LOCALS(local) NCCL(settled(comm[local->index]));
    FOR_LOCALS(local) look_at(world, local, &kSome, local->stream);
  }
  make_streams(world, other);
  for (int round = 0; round < 3; ++round) sum_of_messages(world, comm, other);
  end_streams(world, other);
  FOR_LOCALS(local) in_time(world, ncclCommFinalize(comm[local->index]));
  FOR_LOCALS(local) NCCL(settled(comm[local->index]));
  destroy_comms(world, comm);
}

void run_finalize(struct World* world) {
  ncclComm_t comm[kMostRanks];
  make_comms(world, comm, NULL);
  FOR_LOCALS(local) put_in(world, local, &kSome, local->stream);
  call_all(world, &kSome, comm, world->own);
  NCCL(ncclGroupStart());
  FOR_LOCALS(local) NCCL(ncclCommFinalize(comm[local->index]));
  NCCL(ncclGroupEnd());
  FOR_LOCALS(local) look_at(world, local, &kSome, local->stream);
  destroy_comms(world, comm);
}

// The last rank never makes the call that all others wait in. All ranks abort; none hangs, and the streams and the
// other communicators continue to work.
void run_abort(struct World* world) {
  if (world->ranks < 2) return;
  for (int kind = 0; kind < 2; ++kind) {
    ncclComm_t comm[kMostRanks];
    make_comms(world, comm, NULL);
    struct Call call = kSome;
    if (kind == 1) call.kind = kAllGather;
    NCCL(ncclGroupStart());
    FOR_LOCALS(local) {
      if (local->rank != world->ranks - 1) {
        NCCL(make_call(local, &call, comm[local->index], local->stream));
      }
    }
    NCCL(ncclGroupEnd());
    usleep(30000);
    FOR_LOCALS(local) {
      use(world, local);
      NCCL(ncclCommAbort(comm[local->index]));
    }
    synchronize(world);
    ++world->checks;
  }
  check(world, &kSome);
}
