// Groups and messages.
#include <stdlib.h>
#include <string.h>

#include "cases.h"

enum { kLastPiece = kBufferBytes / kPieces * (kPieces - 1) };

static void send_and_receive(struct World* world, const struct Local* local, int to, int from, size_t count,
                             size_t place) {
  const CUdeviceptr send = local->send + place, recv = local->recv + place;
  NCCL(ncclSend((const void*)send, count, ncclInt32, to, local->comm, local->stream));
  NCCL(ncclRecv((void*)recv, count, ncclInt32, from, local->comm, local->stream));
}

static void fill_message(struct World* world, const struct Local* local, int from, size_t count, size_t place) {
  int32_t* data = malloc(count * 4 + 1);
  for (size_t i = 0; i < count; ++i) encode(ncclInt32, datum(ncclInt32, from, i) + 1000 * (long)place, &data[i]);
  use(world, local);
  CU(cuda.cuMemcpyHtoDAsync_v2(local->send + place, data, count * 4, local->stream));
  CU(cuda.cuMemsetD8Async(local->recv + place, 0xee, count * 4, local->stream));
  free(data);
}

static void look_at_message(struct World* world, const struct Local* local, int from, size_t count, size_t place) {
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
  static const size_t counts[] = {1, 100, 5000, 40000};  // the last is more than any buffer on the way holds
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
