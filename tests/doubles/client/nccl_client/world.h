// The ranks of this process and their resources. One thread drives one or more of them.
#pragma once

#include <stdbool.h>

#include "cuda_calls.h"

enum { kMostRanks = 16 };

struct Options {
  const char* mode;      // process, threads, all, group
  const char* cases;     // comma list, or "all"
  const char* id;        // prefix of the files with unique ids
  long sizes[32];
  int size_count, ranks, rank;
};

struct Local {
  int index, rank, device;  // index: among the ranks of this world
  CUcontext context;
  cudaStream_t stream;
  CUevent event;
  ncclComm_t comm;
  CUdeviceptr send, recv;  // kBufferBytes each
};

struct World {
  const struct Options* options;
  int ranks, locals, ids;  // ids: unique ids used so far
  struct Local local[kMostRanks];
  cudaStream_t own[kMostRanks];  // the stream of each
  const char* what;        // the current case
  long checks, failures;
};

enum { kBufferBytes = 1 << 21, kGuardBytes = 256 };

void set_up(struct World* world);
void tear_down(struct World* world);

// Records a failure with its place; the case continues.
void wrong(struct World* world, int rank, const char* format, ...) __attribute__((format(printf, 3, 4)));

// Check that a result is ncclSuccess, and one of the driver 0; otherwise the program exits, because it cannot continue.
void nccl(struct World* world, ncclResult_t result, const char* call);
void cu(struct World* world, int result, const char* call);
#define NCCL(call) nccl(world, (call), #call)
#define CU(call) cu(world, (call), #call)

void use(struct World* world, const struct Local* local);  // makes its device current
void synchronize(struct World* world);                      // all streams of local ranks

// Streams, one per local rank. `follow`: later work in `to` runs after the current work in `from`.
void make_streams(struct World* world, cudaStream_t* out);
void end_streams(struct World* world, cudaStream_t* streams);
void follow(struct World* world, cudaStream_t* from, cudaStream_t* to);

// The next unique id, equal on all ranks.
ncclUniqueId next_id(struct World* world);

// Brackets the calls of all local ranks with ncclGroupStart and ncclGroupEnd if there are several.
void begin_calls(struct World* world);
void end_calls(struct World* world);
#define FOR_LOCALS(local) \
  for (struct Local* local = world->local; local < world->local + world->locals; ++local)

// One communicator over all ranks, into out[] by local rank; config may be NULL.
void make_comms(struct World* world, ncclComm_t* out, ncclConfig_t* config);
void destroy_comms(struct World* world, ncclComm_t* comms);  // skips those that are NULL
ncclConfig_t config_of(int blocking);
// Waits while the communicator is in progress, and returns its state.
ncclResult_t settled(ncclComm_t comm);
