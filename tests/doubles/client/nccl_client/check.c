#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const unsigned char kUntouched = 0xee, kGuard = 0x5a;

const char* name_of(enum Kind kind) {
  static const char* const names[] = {"AllReduce", "Reduce", "Broadcast", "Bcast", "AllGather", "ReduceScatter",
                                      "AlltoAll", "Gather", "Scatter"};
  return names[kind];
}

bool reduces(enum Kind kind) { return kind == kAllReduce || kind == kReduce || kind == kReduceScatter; }

static size_t send_blocks(const struct World* world, enum Kind kind) {
  return kind == kReduceScatter || kind == kAlltoAll || kind == kScatter ? (size_t)world->ranks : 1;
}
static size_t recv_blocks(const struct World* world, enum Kind kind) {
  return kind == kAllGather || kind == kAlltoAll || kind == kGather ? (size_t)world->ranks : 1;
}

struct Local piece(const struct Local* local, int index) {
  struct Local part = *local;
  part.send += (CUdeviceptr)index * (kBufferBytes / kPieces);
  part.recv += (CUdeviceptr)index * (kBufferBytes / kPieces);
  return part;
}

struct Place place_of(const struct World* world, const struct Local* local, const struct Call* call) {
  const size_t element = bytes_of(call->type), block = call->count * element;
  const size_t start = kGuardBytes + (call->shifted ? element : 0);
  struct Place place = {local->send + start, local->recv + start, block * send_blocks(world, call->kind),
                        block * recv_blocks(world, call->kind)};
  const bool root = local->rank == call->root;
  const size_t own = block * (size_t)local->rank;
  if (call->kind == kBcast) place.send = place.recv;
  if (!call->in_place) return place;
  switch (call->kind) {
    case kAllReduce: case kBroadcast: place.send = place.recv; break;
    case kReduce: if (root) place.send = place.recv; break;
    case kAllGather: place.send = place.recv + own; break;
    case kReduceScatter: place.recv = place.send + own; break;
    case kGather: if (root) place.send = place.recv + own; break;
    case kScatter: if (root) place.recv = place.send + own; break;
    default: break;
  }
  return place;
}

static long input_value(const struct World* world, const struct Local* local, const struct Call* call, size_t i) {
  if (!reduces(call->kind)) return datum(call->type, local->rank, i);
  return operand(call->type, call->factor ? ncclSum : call->op, world->ranks, local->rank, i);
}

static char* encoded_input(const struct World* world, const struct Local* local, const struct Call* call,
                           size_t bytes) {
  const size_t element = bytes_of(call->type);
  char* data = malloc(bytes + 1);
  for (size_t i = 0; i < bytes / element; ++i) {
    encode(call->type, input_value(world, local, call, i), data + i * element);
  }
  return data;
}

void put_in(struct World* world, const struct Local* local, const struct Call* call, cudaStream_t stream) {
  const struct Place place = place_of(world, local, call);
  use(world, local);
  const size_t around = 2 * kGuardBytes + 64;
  const CUdeviceptr buffers[] = {local->send, local->recv};
  for (int b = 0; b < 2; ++b) {
    const size_t longest = (place.send_bytes > place.recv_bytes ? place.send_bytes : place.recv_bytes) + around;
    CU(cuda.cuMemsetD8Async(buffers[b], kGuard, longest, stream));
  }
  if (place.recv_bytes) CU(cuda.cuMemsetD8Async(place.recv, kUntouched, place.recv_bytes, stream));
  const bool has_input = (call->kind != kBroadcast && call->kind != kBcast && call->kind != kScatter) ||
                         local->rank == call->root;
  if (!has_input || !place.send_bytes) return;
  char* data = encoded_input(world, local, call, place.send_bytes);
  CU(cuda.cuMemcpyHtoDAsync_v2(place.send, data, place.send_bytes, stream));
  free(data);
}

ncclResult_t make_call(const struct Local* local, const struct Call* call, ncclComm_t comm, cudaStream_t stream) {
  struct World shape = {0};
  ncclCommCount(comm, &shape.ranks);
  const struct Place place = place_of(&shape, local, call);
  const void* send = (const void*)place.send;
  void* recv = (void*)place.recv;
  const size_t n = call->count;
  const ncclDataType_t t = call->type;
  const bool root = local->rank == call->root;
  if (!root && (call->kind == kReduce || call->kind == kGather)) recv = NULL;
  if (!root && call->kind == kScatter) send = NULL;
  ncclCollConfig_t config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.magic = NCCL_API_MAGIC;
  config.version = NCCL_VERSION_CODE;
  config.minCTAs = config.maxCTAs = config.nvlsCTAs = config.cgaClusterSize = NCCL_CONFIG_UNDEF_INT;
  config.CTAPolicy = NCCL_CONFIG_UNDEF_INT;
  config.forceAlgSelection = 1;
#define CALL(name, ...) call->with_config ? nccl##name##Config(__VA_ARGS__, &config) : nccl##name(__VA_ARGS__)
  switch (call->kind) {
    case kAllReduce: return CALL(AllReduce, send, recv, n, t, call->op, comm, stream);
    case kReduce: return CALL(Reduce, send, recv, n, t, call->op, call->root, comm, stream);
    case kBroadcast: return CALL(Broadcast, send, recv, n, t, call->root, comm, stream);
    case kAllGather: return CALL(AllGather, send, recv, n, t, comm, stream);
    case kReduceScatter: return CALL(ReduceScatter, send, recv, n, t, call->op, comm, stream);
    case kAlltoAll: return CALL(AlltoAll, send, recv, n, t, comm, stream);
    case kGather: return CALL(Gather, send, recv, n, t, call->root, comm, stream);
    case kScatter: return CALL(Scatter, send, recv, n, t, call->root, comm, stream);
    case kBcast:
      if (!call->with_config) return ncclBcast(recv, n, t, call->root, comm, stream);
      return ncclBroadcastConfig(recv, recv, n, t, call->root, comm, stream, &config);
    default: return ncclInternalError;
  }
#undef CALL
}

void call_all(struct World* world, const struct Call* call, ncclComm_t* comms, cudaStream_t* streams) {
  begin_calls(world);
  FOR_LOCALS(local) {
    NCCL(make_call(local, call, comms ? comms[local->index] : local->comm, streams[local->index]));
  }
  end_calls(world);
}

// Returns the expected element `i` of the output.
static long output_value(const struct World* world, const struct Local* local, const struct Call* call, size_t i) {
  const size_t block = call->count ? i / call->count : 0, within = call->count ? i % call->count : 0;
  const size_t own = (size_t)local->rank * call->count;
  const ncclRedOp_t op = call->factor ? ncclSum : call->op;
  const long factor = call->factor ? call->factor : 1;
  switch (call->kind) {
    case kAllReduce: case kReduce: return factor * reduced(call->type, op, world->ranks, i);
    case kReduceScatter: return factor * reduced(call->type, op, world->ranks, own + i);
    case kBroadcast: case kBcast: return datum(call->type, call->root, i);
    case kAllGather: case kGather: return datum(call->type, (int)block, within);
    case kAlltoAll: return datum(call->type, (int)block, own + within);
    default: return datum(call->type, call->root, own + i);
  }
}

static void compare(struct World* world, const struct Local* local, const struct Call* call, const char* what,
                    const char* seen, const char* expected, size_t bytes) {
  ++world->checks;
  if (!memcmp(seen, expected, bytes)) return;
  size_t at = 0;
  while (seen[at] == expected[at]) ++at;
  wrong(world, local->rank, "%s of nccl%s, count %zu, type %d, op %d, root %d%s%s: byte %zu of %zu is %02x, not %02x",
        what, name_of(call->kind), call->count, (int)call->type, (int)call->op, call->root,
        call->in_place ? ", in place" : "", call->shifted ? ", shifted" : "", at, bytes, (unsigned char)seen[at],
        (unsigned char)expected[at]);
}

void look_at(struct World* world, const struct Local* local, const struct Call* call, cudaStream_t stream) {
  const struct Place place = place_of(world, local, call);
  const size_t element = bytes_of(call->type);
  const bool root = local->rank == call->root;
  const bool has_output = (call->kind != kReduce && call->kind != kGather) || root;
  use(world, local);
  const size_t longest = (place.send_bytes > place.recv_bytes ? place.send_bytes : place.recv_bytes) + 2 * kGuardBytes;
  char* seen[2] = {malloc(longest + 64), malloc(longest + 64)};
  CU(cuda.cuMemcpyDtoHAsync_v2(seen[0], local->send, longest, stream));
  CU(cuda.cuMemcpyDtoHAsync_v2(seen[1], local->recv, longest, stream));
  CU(cuda.cuStreamSynchronize(stream));
  char* expected = malloc(longest + 64);
  const CUdeviceptr bases[] = {local->send, local->recv};
  for (int b = 0; b < 2; ++b) {
    // The expected buffer: guards, then the input, then the output over it.
    memset(expected, kGuard, longest);
    if (place.recv >= bases[b] && place.recv < bases[b] + longest) {
      memset(expected + (place.recv - bases[b]), kUntouched, place.recv_bytes);
    }
    const bool has_input = (call->kind != kBroadcast && call->kind != kBcast && call->kind != kScatter) || root;
    if (has_input && place.send >= bases[b] && place.send < bases[b] + longest) {
      char* input = encoded_input(world, local, call, place.send_bytes);
      memcpy(expected + (place.send - bases[b]), input, place.send_bytes);
      free(input);
    }
    if (has_output && place.recv >= bases[b] && place.recv < bases[b] + longest) {
      char* output = expected + (place.recv - bases[b]);
      for (size_t i = 0; i < place.recv_bytes / element; ++i) {
        encode(call->type, output_value(world, local, call, i), output + i * element);
      }
    }
    if (b == 0 && call->in_place && call->kind == kReduceScatter) {
      // Only the rank's own block is an output; the library may use the other blocks of an in-place send buffer.
      compare(world, local, call, "output", seen[b] + (place.recv - bases[b]), expected + (place.recv - bases[b]),
              place.recv_bytes);
      continue;
    }
    compare(world, local, call, b ? "output" : "input", seen[b], expected, longest);
  }
  free(expected);
  free(seen[0]);
  free(seen[1]);
}

void check(struct World* world, const struct Call* call) {
  FOR_LOCALS(local) put_in(world, local, call, local->stream);
  begin_calls(world);
  FOR_LOCALS(local) {
    const ncclResult_t result = make_call(local, call, local->comm, local->stream);
    if (result != ncclSuccess) {
      wrong(world, local->rank, "nccl%s gives %d: %s", name_of(call->kind), (int)result, ncclGetErrorString(result));
    }
  }
  end_calls(world);
  FOR_LOCALS(local) look_at(world, local, call, local->stream);
}
