// The order of streams is preserved.
#include "cases.h"

static const struct Call kSmall = {kAllReduce, 999, ncclFloat32, ncclSum, 0, false, false, false, 0};

// Input is written in one stream, reduced in a second, read in a third; only events order them.
static void in_three_streams(struct World* world, cudaStream_t* second, cudaStream_t* third) {
  for (int round = 0; round < 6; ++round) {
    struct Call call = kSmall;
    call.kind = round % 2 ? kAllReduce : kAllGather;
    call.in_place = round % 3 == 1;
    FOR_LOCALS(local) put_in(world, local, &call, local->stream);
    follow(world, world->own, second);
    call_all(world, &call, NULL, second);
    follow(world, second, third);
    FOR_LOCALS(local) look_at(world, local, &call, third[local->index]);
  }
}

// Two calls of one communicator in two streams run in the order of the calls: the second reads the output of the first.
static void one_after_the_other(struct World* world, cudaStream_t* second, cudaStream_t* third) {
  FOR_LOCALS(local) put_in(world, local, &kSmall, local->stream);
  follow(world, world->own, second);
  call_all(world, &kSmall, NULL, second);
  begin_calls(world);
  FOR_LOCALS(local) {
    const struct Place place = place_of(world, local, &kSmall);
    NCCL(ncclBroadcast((const void*)place.recv, (void*)place.recv, kSmall.count, kSmall.type, 0, local->comm,
                       third[local->index]));
  }
  end_calls(world);
  FOR_LOCALS(local) look_at(world, local, &kSmall, third[local->index]);
}

// Calls of one group in several streams, an AllGather, an AllReduce and a message. Each begins when all streams have
// reached it, and each stream continues when all calls are complete. So no call's data are written or read in its
// stream.
static void in_one_group(struct World* world, cudaStream_t* second, cudaStream_t* third) {
  enum { kCount = 30000, kPlace = kBufferBytes / kPieces * 2 };
  const int n = world->ranks;
  struct Call calls[2] = {kSmall, kSmall};
  calls[1].kind = kAllGather;
  FOR_LOCALS(local) {
    struct Local elsewhere = *local;
    elsewhere.stream = second[local->index];
    fill_message(world, &elsewhere, local->rank, kCount, kPlace);
    for (int c = 0; c < 2; ++c) {
      const struct Local part = piece(local, c);
      put_in(world, &part, &calls[c], (c ? second : third)[local->index]);
    }
  }
  NCCL(ncclGroupStart());
  FOR_LOCALS(local) {
    for (int c = 0; c < 2; ++c) {
      const struct Local part = piece(local, c);
      NCCL(make_call(&part, &calls[c], local->comm, (c ? third : second)[local->index]));
    }
    send_and_receive(world, local, (local->rank + 1) % n, (local->rank + n - 1) % n, kCount, kPlace);
  }
  NCCL(ncclGroupEnd());
  FOR_LOCALS(local) {
    struct Local elsewhere = *local;
    elsewhere.stream = third[local->index];
    for (int c = 0; c < 2; ++c) {
      const struct Local part = piece(local, c);
      look_at(world, &part, &calls[c], c ? second[local->index] : local->stream);
    }
    look_at_message(world, &elsewhere, (local->rank + n - 1) % n, kCount, kPlace);
  }
}

void run_streams(struct World* world) {
  cudaStream_t second[kMostRanks], third[kMostRanks];
  make_streams(world, second);
  make_streams(world, third);
  in_three_streams(world, second, third);
  one_after_the_other(world, second, third);
  in_one_group(world, second, third);
  end_streams(world, second);
  end_streams(world, third);
}

// The default stream of each device: handle 0.
void run_legacy_stream(struct World* world) {
  synchronize(world);
  FOR_LOCALS(local) put_in(world, local, &kSmall, NULL);
  begin_calls(world);
  FOR_LOCALS(local) {
    use(world, local);
    NCCL(make_call(local, &kSmall, local->comm, NULL));
  }
  end_calls(world);
  FOR_LOCALS(local) look_at(world, local, &kSmall, NULL);
}

// Several communicators over the same devices, interleaved.
void run_several(struct World* world) {
  ncclComm_t more[3][kMostRanks];
  cudaStream_t stream[3][kMostRanks];
  for (int m = 0; m < 3; ++m) {
    make_comms(world, more[m], NULL);
    make_streams(world, stream[m]);
  }
  for (int round = 0; round < 3; ++round) {
    struct Call calls[3] = {kSmall, kSmall, kSmall};
    for (int m = 0; m < 3; ++m) {
      calls[m].kind = (enum Kind)((m * 2 + round) % kKinds);
      FOR_LOCALS(local) {
        const struct Local part = piece(local, m);
        put_in(world, &part, &calls[m], stream[m][local->index]);
      }
    }
    for (int m = 0; m < 3; ++m) {
      begin_calls(world);
      FOR_LOCALS(local) {
        const struct Local part = piece(local, m);
        NCCL(make_call(&part, &calls[m], more[m][local->index], stream[m][local->index]));
      }
      end_calls(world);
    }
    for (int m = 2; m >= 0; --m) {
      FOR_LOCALS(local) {
        const struct Local part = piece(local, m);
        look_at(world, &part, &calls[m], stream[m][local->index]);
      }
    }
  }
  for (int m = 0; m < 3; ++m) {
    destroy_comms(world, more[m]);
    end_streams(world, stream[m]);
  }
}
