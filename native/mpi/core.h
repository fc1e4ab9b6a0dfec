// What libblink_mpi.so has for its binding to one MPI library: communicators that share memory, and calls on them.
//
// The binding (binding.c) is compiled with that library's mpi.h and knows its handles; everything else is here, and knows
// no MPI. A communicator is used by one thread at a time, as MPI has it; different ones by different threads.
#ifndef BLINK_MPI_CORE_H
#define BLINK_MPI_CORE_H

#include <stddef.h>
#include <stdint.h>

#include "functions.h"

#ifdef __cplusplus
extern "C" {
#endif

// What a binding and a libblink_mpi.so that belong together agree on.
#define BLINK_MPI_BINDING_VERSION 7

// The MPI library, as the core sees it.
typedef struct {
  int32_t rank, size;
  void* self;
  // Everybody's `bytes`, in the order of the ranks, as a collective of the MPI library. 0, or its error.
  int (*allgather)(void* self, const void* own, void* all, int32_t bytes);
  // Lets the MPI library go on with what it has begun.
  void (*progress)(void* self);
} blink_mpi_peers;

// The beginning of a communicator's state, for the binding to look at; the rest is the core's.
typedef struct {
  int32_t serves;  // 0: all of its calls are the MPI library's,
  int32_t reason;  // for this reason (of blink_mpi_reason)
  int32_t early;   // more than 0: until so many more have been made, when the binding makes it anew
  int32_t rank, size;
} blink_mpi_comm;

// What all ranks must agree on; `count` is of elements per block, 0 where the blocks differ in length.
typedef struct {
  int32_t collective, root;
  int64_t count;
  uint32_t dtype, op;
} blink_mpi_call;

// The blocks of a rank's input or output where they differ in length: how long each is and where it begins, in elements.
enum { kMostRanks = 64 };  // that there are plans for
typedef struct {
  int32_t count;
  int64_t lengths[kMostRanks], places[kMostRanks];
} blink_mpi_blocks;

enum blink_mpi_outcome { BLINK_MPI_DONE = 0, BLINK_MPI_NO_PLAN, BLINK_MPI_FAILED };

// A communicator that passes all calls on, for a reason that every rank finds by itself; or the next so many that
// BLINK_MPI_AFTER says (kEarly): to share memory takes as long as thousands of small calls.
blink_mpi_comm* blink_mpi_comm_passing(int32_t reason);
// One whose ranks share memory, or pass all calls on if any of them cannot; all ranks call it, and agree. `progress` is
// called during long waits, with a `self` that lives as long.
blink_mpi_comm* blink_mpi_comm_make(const blink_mpi_peers* peers);
void blink_mpi_comm_free(blink_mpi_comm* comm);
// This process is there, before MPI_Init: a rank that nobody saw begin is not served, since others may have looked for it.
void blink_mpi_announce(void);
// Whether all these ranks of the world run under this library: on this host, or on all hosts of which the user has said so.
int blink_mpi_are_here(const int* world_ranks, int count);
// A number of this process's host.
uint64_t blink_mpi_host(void);

// One of blink_mpi_outcome, the same on all ranks. Where it failed, stderr says why.
int blink_mpi_run(blink_mpi_comm* comm, const blink_mpi_call* call, const void* input, void* output);
// The same for blocks that differ in length: those that this rank has to know. Where it failed, it may be on this rank alone.
int blink_mpi_run_blocks(blink_mpi_comm* comm, const blink_mpi_call* call, const blink_mpi_blocks* sources,
                         const blink_mpi_blocks* targets, const void* input, void* output);

// At least `bytes` of memory, the communicator's, until it is asked for again with the same number (0 or 1); NULL: none.
void* blink_mpi_scratch(blink_mpi_comm* comm, int number, size_t bytes);
// Counts a call that goes to the MPI library.
void blink_mpi_passed(enum blink_mpi_function function, enum blink_mpi_reason reason);
// Writes the report; no call is served any more.
void blink_mpi_finish(void);

#ifdef __cplusplus
}
#endif

#endif
