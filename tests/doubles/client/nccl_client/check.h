// The check of one collective. Inputs are written, the call is made on all local ranks, and outputs, unchanged inputs
// and the bytes around both are compared bit by bit.
#pragma once

#include "values.h"
#include "world.h"

enum { kPieces = 8 };

enum Kind { kAllReduce, kReduce, kBroadcast, kBcast, kAllGather, kReduceScatter, kAlltoAll, kGather, kScatter, kKinds };

struct Call {
  enum Kind kind;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  bool in_place, shifted, with_config;  // shifted: buffers begin one element past an aligned address;
  long factor;                          // of a PreMulSum operation `op`, made from a sum; 0: another operation
};

const char* name_of(enum Kind kind);
bool reduces(enum Kind kind);

// A part of the rank's buffers, for one of several calls that run together.
struct Local piece(const struct Local* local, int index);

// The buffers of a rank's call.
struct Place { CUdeviceptr send, recv; size_t send_bytes, recv_bytes; };
struct Place place_of(const struct World* world, const struct Local* local, const struct Call* call);

void put_in(struct World* world, const struct Local* local, const struct Call* call, cudaStream_t stream);
ncclResult_t make_call(const struct Local* local, const struct Call* call, ncclComm_t comm, cudaStream_t stream);
// Makes the call on all local ranks; `comms` or `streams` NULL: their own.
void call_all(struct World* world, const struct Call* call, ncclComm_t* comms, cudaStream_t* streams);
void look_at(struct World* world, const struct Local* local, const struct Call* call, cudaStream_t stream);

// Writes inputs, makes the call and compares, on the communicator and the stream of each local rank.
void check(struct World* world, const struct Call* call);
