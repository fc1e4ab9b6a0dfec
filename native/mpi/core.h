// libblink_mpi.so's interface for the binding to one MPI library: communicators that share memory, and their calls.
//
// The binding (binding.c) is compiled with that library's mpi.h and knows its handles; the rest is here, independent of
// any MPI. One thread at a time uses a communicator, as in MPI; different threads may use different ones.
#ifndef BLINK_MPI_CORE_H
#define BLINK_MPI_CORE_H

#include <stddef.h>
#include <stdint.h>

#include "functions.h"

#ifdef __cplusplus
extern "C" {
#endif

// The version on which a binding and libblink_mpi.so must agree.
#define BLINK_MPI_BINDING_VERSION 7

// The core's view of the MPI library.
typedef struct {
  int32_t rank, size;
  void* self;
  // Gathers every rank's `bytes` in the order of ranks, as a collective of the MPI library. Returns 0, or its error.
  int (*allgather)(void* self, const void* own, void* all, int32_t bytes);
  // Makes the MPI library progress its pending operations.
  void (*progress)(void* self);
} blink_mpi_peers;

// The head of a communicator's state, for the binding; the core owns the rest.
typedef struct {
  int32_t serves;  // 0: all of its calls go to the MPI library,
  int32_t reason;  // for this reason (of blink_mpi_reason)
  int32_t early;   // above 0: the number of calls after which the binding decides anew
  int32_t rank, size;
} blink_mpi_comm;

// The arguments that must be equal on all ranks; `count` is in elements per block, 0 if blocks differ in length.
typedef struct {
  int32_t collective, root;
  int64_t count;
  uint32_t dtype, op;
} blink_mpi_call;

// The blocks of a rank's input or output if they differ in length: lengths and offsets in elements.
enum { kMostRanks = 64 };  // the largest number with plans
typedef struct {
  int32_t count;
  int64_t lengths[kMostRanks], places[kMostRanks];
} blink_mpi_blocks;

enum blink_mpi_outcome { BLINK_MPI_DONE = 0, BLINK_MPI_NO_PLAN, BLINK_MPI_FAILED };

// A communicator whose calls all go to MPI, for a reason that every rank finds by itself; or, with kEarly, the first
// BLINK_MPI_AFTER calls, since sharing memory takes as long as thousands of small calls.
blink_mpi_comm* blink_mpi_comm_passing(int32_t reason);
// A communicator whose ranks share memory, or pass all calls to MPI if one of them cannot. All ranks call it, with the
// same outcome. `progress` is called during long waits; its `self` must outlive the communicator.
blink_mpi_comm* blink_mpi_comm_make(const blink_mpi_peers* peers);
void blink_mpi_comm_free(blink_mpi_comm* comm);
// Announces this process before MPI_Init. Other ranks may already have searched for a later one, so it is not served.
void blink_mpi_announce(void);
// True if all these ranks of the world run under this library: on this host, or on the hosts that the user has named.
int blink_mpi_are_here(const int* world_ranks, int count);
// A number of this process's host.
uint64_t blink_mpi_host(void);

// Returns one of blink_mpi_outcome, the same on all ranks. After a failure the reason is on stderr.
int blink_mpi_run(blink_mpi_comm* comm, const blink_mpi_call* call, const void* input, void* output);
// The same for blocks that differ in length: those that this rank knows. A failure may be on this rank alone.
int blink_mpi_run_blocks(blink_mpi_comm* comm, const blink_mpi_call* call, const blink_mpi_blocks* sources,
                         const blink_mpi_blocks* targets, const void* input, void* output);

// The communicator's scratch memory of at least `bytes`, valid until the next call with this number (0 or 1), or NULL.
void* blink_mpi_scratch(blink_mpi_comm* comm, int number, size_t bytes);
// Counts a call that goes to the MPI library.
void blink_mpi_passed(enum blink_mpi_function function, enum blink_mpi_reason reason);
// Ends serving: all later calls go to MPI.
void blink_mpi_finish(void);

#ifdef __cplusplus
}
#endif

#endif
