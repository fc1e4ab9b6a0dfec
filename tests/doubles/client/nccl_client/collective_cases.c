// Every collective gives the correct bits for every type, operation, size and place.
#include "cases.h"

static struct Call call_of(enum Kind kind, size_t count, ncclDataType_t type, ncclRedOp_t op, int root) {
  const struct Call call = {kind, count, type, op, root, false, false, false, 0};
  return call;
}

void run_types(struct World* world) {
  for (int type = 0; type < ncclNumTypes; ++type) {
    for (int kind = 0; kind < kKinds; ++kind) {
      for (int op = 0; op < (reduces((enum Kind)kind) ? ncclNumOps : 1); ++op) {
        if (!is_exact((ncclDataType_t)type, (ncclRedOp_t)op, world->ranks)) continue;
        const struct Call call = call_of((enum Kind)kind, 67, (ncclDataType_t)type, (ncclRedOp_t)op,
                                         (type + op) % world->ranks);
        check(world, &call);
      }
    }
  }
}

void run_sizes(struct World* world) {
  for (int s = 0; s < world->options->size_count; ++s) {
    for (int kind = 0; kind < kKinds; ++kind) {
      for (int variant = 0; variant < 4; ++variant) {
        struct Call call = call_of((enum Kind)kind, (size_t)world->options->sizes[s],
                                   variant == 3 ? ncclInt8 : ncclFloat32, ncclSum, (s + kind) % world->ranks);
        call.in_place = variant & 1;
        call.shifted = variant >> 1;
        if (call.in_place && (kind == kAlltoAll || kind == kBcast)) continue;
        if (call.count * bytes_of(call.type) * (size_t)world->ranks + 2 * kGuardBytes + 64 > kBufferBytes) continue;
        check(world, &call);
      }
    }
  }
}

void run_configs(struct World* world) {
  for (int kind = 0; kind < kKinds; ++kind) {
    struct Call call = call_of((enum Kind)kind, 130, ncclInt32, ncclMax, world->ranks - 1);
    call.with_config = true;
    check(world, &call);
  }
}

void run_scaled(struct World* world) {
  static const ncclDataType_t types[] = {ncclFloat32, ncclInt32, ncclFloat64, ncclFloat16, ncclUint8};
  static const enum Kind kinds[] = {kAllReduce, kReduce, kReduceScatter};
  for (int t = 0; t < 5; ++t) {
    for (int device = 0; device < 2; ++device) {
      ncclRedOp_t ops[kMostRanks];
      CUdeviceptr scalar[kMostRanks];
      FOR_LOCALS(local) {
        char value[8];
        const int i = local->index;
        encode(types[t], 2 + device, value);
        use(world, local);
        CU(cuda.cuMemAlloc_v2(&scalar[i], 8));
        CU(cuda.cuMemcpyHtoDAsync_v2(scalar[i], value, 8, local->stream));
        CU(cuda.cuStreamSynchronize(local->stream));
        NCCL(ncclRedOpCreatePreMulSum(&ops[i], device ? (void*)scalar[i] : (void*)value, types[t],
                                      device ? ncclScalarDevice : ncclScalarHostImmediate, local->comm));
        if ((int)ops[i] < ncclNumOps) wrong(world, local->rank, "a made operation has number %d", (int)ops[i]);
      }
      for (int k = 0; k < 3; ++k) {
        struct Call call = call_of(kinds[k], 33, types[t], ops[0], 0);
        call.factor = 2 + device;
        check(world, &call);
      }
      FOR_LOCALS(local) {
        NCCL(ncclRedOpDestroy(ops[local->index], local->comm));
        use(world, local);
        CU(cuda.cuMemFree_v2(scalar[local->index]));
      }
    }
  }
}
