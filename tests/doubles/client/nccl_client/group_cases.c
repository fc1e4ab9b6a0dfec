// Groups and messages.
#include <stdlib.h>
#include <string.h>

#include "cases.h"

enum { kLastPiece = kBufferBytes / kPieces * (kPieces - 1) };

void send_and_receive(struct World* world, const struct Local* local, int to, int from, size_t count,
                             size_t place) {
  const CUdeviceptr send = local->send + place, recv = local->recv + place;
  NCCL(ncclSend((const void*)send, count, ncclInt32, to, local->comm, local->stream));
  NCCL(ncclRecv((void*)recv, count, ncclInt32, from, local->comm, local->stream));
}

void fill_message(struct World* world, const struct Local* local, int from, size_t count, size_t place) {
  int32_t* data = malloc(count * 4 + 1);
  for (size_t i = 0; i < count; ++i) encode(ncclInt32, datum(ncclInt32, from, i) + 1000 * (long)place, &data[i]);
  use(world, local);
  CU(cuda.cuMemcpyHtoDAsync_v2(local->send + place, data, count * 4, local->stream));
  CU(cuda.cuMemsetD8Async(local->recv + place, 0xee, count * 4, local->stream));
  free(data);
}

void look_at_message(struct World* world, const struct Local* local, int from, size_t count, size_t place) {
  int32_t* data = malloc(count * 4 + 1);
  use(world, local);
  CU(cuda.cuMemcpyDtoHAsync_v2(data, local->recv + place, count * 4, local->stream));
  CU(cuda.cuStreamSynchronize(local->stream));
  ++world->checks;
  for (size_t i = 0; i < count; ++i) {
    if (data[i] != datum(ncclInt32, from, i) + 1000 * (long)place) {
      wrong(world, local->rank, "message from rank %d: element %zu of %zu is %d", from, i, count, data[i]);
      break;
    }
  }
  free(data);
}

void run_messages(struct World* world) {
  const int n = world->ranks;
  static const size_t counts[] = {1, 100, 5000, 40000};  // the last exceeds every intermediate buffer
  for (int c = 0; c < 4; ++c) {
    for (int step = 0; step < n; ++step) {  // step 0: to itself
      FOR_LOCALS(local) fill_message(world, local, local->rank, counts[c], 0);
      NCCL(ncclGroupStart());
      FOR_LOCALS(local) {
        send_and_receive(world, local, (local->rank + step) % n, (local->rank + n - step) % n, counts[c], 0);
      }
      NCCL(ncclGroupEnd());
      FOR_LOCALS(local) look_at_message(world, local, (local->rank + n - step) % n, counts[c], 0);
    }
  }
}

// Messages of all types and some sizes between all ranks, in both directions and to the same rank, three per pair in
// sequence, in one group, alternating between two streams; only messages in flight, or several such groups in sequence.
enum { kInARow = 3 };
static const size_t kExchanged[kInARow] = {0, 1, 4099};

static size_t exchanged_at(int other, int message) { return (size_t)(other * kInARow + message) * 33 * 1024; }

static void put_exchanged(struct World* world, const struct Local* local, ncclDataType_t type, int round) {
  const size_t size = bytes_of(type);
  char* data = malloc(4100 * 8);
  for (int to = 0; to < world->ranks; ++to) {
    for (int message = 0; message < kInARow; ++message) {
      for (size_t i = 0; i < kExchanged[message]; ++i) {
        encode(type, datum(type, local->rank + to + message + round, i), data + i * size);
      }
      CU(cuda.cuMemcpyHtoDAsync_v2(local->send + exchanged_at(to, message), data, kExchanged[message] * size,
                                   local->stream));
    }
  }
  CU(cuda.cuMemsetD8Async(local->recv, 0xee, exchanged_at(world->ranks, 0), local->stream));
  free(data);
}

static void exchange(struct World* world, const struct Local* local, ncclDataType_t type, cudaStream_t other) {
  NCCL(ncclGroupStart());
  for (int step = 0; step < world->ranks; ++step) {
    const int to = (local->rank + step) % world->ranks;
    const int from = (local->rank + world->ranks - step) % world->ranks;
    for (int message = 0; message < kInARow; ++message) {
      const cudaStream_t stream = (step + message) % 2 ? other : local->stream;
      const size_t count = kExchanged[message];
      NCCL(ncclSend((const void*)(local->send + exchanged_at(to, message)), count, type, to, local->comm, stream));
      NCCL(ncclRecv((void*)(local->recv + exchanged_at(from, message)), count, type, from, local->comm, stream));
    }
  }
  NCCL(ncclGroupEnd());
}

static void look_at_exchanged(struct World* world, const struct Local* local, ncclDataType_t type, int round) {
  const size_t size = bytes_of(type);
  char *data = malloc(4100 * 8), *expected = malloc(4100 * 8);
  for (int from = 0; from < world->ranks; ++from) {
    for (int message = 0; message < kInARow; ++message) {
      const size_t bytes = kExchanged[message] * size;
      for (size_t i = 0; i < kExchanged[message]; ++i) {
        encode(type, datum(type, from + local->rank + message + round, i), expected + i * size);
      }
      CU(cuda.cuMemcpyDtoHAsync_v2(data, local->recv + exchanged_at(from, message), bytes + 1, local->stream));
      CU(cuda.cuStreamSynchronize(local->stream));
      ++world->checks;
      if (memcmp(data, expected, bytes) || (unsigned char)data[bytes] != 0xee) {
        wrong(world, local->rank, "message %d from rank %d, type %d", message, from, (int)type);
      }
    }
  }
  free(expected);
  free(data);
}

void run_exchange(struct World* world) {
  cudaStream_t others[kMostRanks];
  make_streams(world, others);
  for (int type = 0; type < ncclNumTypes; ++type) {
    FOR_LOCALS(local) {
      use(world, local);
      put_exchanged(world, local, (ncclDataType_t)type, type);
    }
    begin_calls(world);
    FOR_LOCALS(local) exchange(world, local, (ncclDataType_t)type, others[local->index]);
    end_calls(world);
    FOR_LOCALS(local) {
      use(world, local);
      look_at_exchanged(world, local, (ncclDataType_t)type, type);
    }
  }
  end_streams(world, others);
}

void run_groups(struct World* world) {
  const int n = world->ranks;
  static const enum Kind kinds[] = {kAllReduce, kBroadcast, kAllGather, kReduceScatter, kReduce};
  struct Call calls[5];
  for (int c = 0; c < 5; ++c) {
    const struct Call call = {kinds[c], (size_t)(100 + 1000 * c), ncclFloat32, ncclSum, c % n, false, false, false, 0};
    calls[c] = call;
  }
  for (int nested = 0; nested < 2; ++nested) {
    FOR_LOCALS(local) {
      for (int c = 0; c < 5; ++c) {
        const struct Local part = piece(local, c);
        put_in(world, &part, &calls[c], local->stream);
      }
      fill_message(world, local, local->rank, 300, kLastPiece);
    }
    NCCL(ncclGroupStart());
    FOR_LOCALS(local) {
      for (int c = 0; c < 5; ++c) {
        const struct Local part = piece(local, c);
        if (nested) NCCL(ncclGroupStart());
        NCCL(make_call(&part, &calls[c], local->comm, local->stream));
        if (c == 2) {
          send_and_receive(world, local, (local->rank + 1) % n, (local->rank + n - 1) % n, 300, kLastPiece);
        }
        if (nested) NCCL(ncclGroupEnd());
      }
    }
    NCCL(ncclGroupEnd());
    FOR_LOCALS(local) {
      for (int c = 0; c < 5; ++c) {
        const struct Local part = piece(local, c);
        look_at(world, &part, &calls[c], local->stream);
      }
      look_at_message(world, local, (local->rank + n - 1) % n, 300, kLastPiece);
    }
  }
  NCCL(ncclGroupStart());  // an empty group
  NCCL(ncclGroupEnd());
}
