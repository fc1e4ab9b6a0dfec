// The MPI functions that libblink_mpi.so interposes, each with its number of arguments. All are integers, handles or
// pointers: one register or stack word each in every MPI library, so one build serves all.
//
//   HANDLED        binding.inc implements it and its second form of MPI 4 (_c, counts of MPI_Count)
//   ALONE          the binding implements it; it has no second form
//   COUNTED        goes to the MPI library, as does its second form; counted with the reason
//   COUNTED_ALONE  the same without a second form
#ifndef BLINK_MPI_FUNCTIONS_H
#define BLINK_MPI_FUNCTIONS_H

#define BLINK_MPI_COLLECTIVES(HANDLED, COUNTED)                                                                \
  HANDLED(Allreduce, 6) HANDLED(Bcast, 5) HANDLED(Reduce, 7) HANDLED(Allgather, 7) HANDLED(Allgatherv, 8)      \
  HANDLED(Reduce_scatter, 6) HANDLED(Reduce_scatter_block, 6) HANDLED(Gather, 8) HANDLED(Scatter, 8)           \
  HANDLED(Alltoall, 7) HANDLED(Gatherv, 9) HANDLED(Scatterv, 9) HANDLED(Alltoallv, 9)                          \
  COUNTED(Iallreduce, 7, kLater) COUNTED(Ibcast, 6, kLater) COUNTED(Ireduce, 8, kLater)                        \
  COUNTED(Iallgather, 8, kLater) COUNTED(Iallgatherv, 9, kLater) COUNTED(Ireduce_scatter, 7, kLater)           \
  COUNTED(Ireduce_scatter_block, 7, kLater) COUNTED(Igather, 9, kLater) COUNTED(Iscatter, 9, kLater)           \
  COUNTED(Ialltoall, 8, kLater) COUNTED(Igatherv, 10, kLater) COUNTED(Iscatterv, 10, kLater)                   \
  COUNTED(Ialltoallv, 10, kLater) COUNTED(Ialltoallw, 10, kLater) COUNTED(Iscan, 7, kLater)                    \
  COUNTED(Iexscan, 7, kLater) COUNTED(Alltoallw, 9, kOther) COUNTED(Scan, 6, kOther) COUNTED(Exscan, 6, kOther)

#define BLINK_MPI_ALONE(ALONE, COUNTED_ALONE) \
  ALONE(Barrier, 1) ALONE(Init, 2) ALONE(Init_thread, 4) COUNTED_ALONE(Ibarrier, 2, kLater)

// The functions new in MPI 4, besides second forms. A separate library (libblink_mpi4.so) interposes them; it is
// preloaded only if the MPI library has them, since programs test for them.
#define BLINK_MPI_4_COLLECTIVES(COUNTED)                                                                       \
  COUNTED(Allreduce_init, 8, kLater) COUNTED(Bcast_init, 7, kLater) COUNTED(Reduce_init, 9, kLater)            \
  COUNTED(Allgather_init, 9, kLater) COUNTED(Allgatherv_init, 10, kLater) COUNTED(Gather_init, 10, kLater)     \
  COUNTED(Reduce_scatter_init, 8, kLater) COUNTED(Reduce_scatter_block_init, 8, kLater)                        \
  COUNTED(Scatter_init, 10, kLater) COUNTED(Alltoall_init, 9, kLater) COUNTED(Gatherv_init, 11, kLater)        \
  COUNTED(Scatterv_init, 11, kLater) COUNTED(Alltoallv_init, 11, kLater) COUNTED(Alltoallw_init, 11, kLater)   \
  COUNTED(Scan_init, 8, kLater) COUNTED(Exscan_init, 8, kLater)
#define BLINK_MPI_4_ALONE(COUNTED_ALONE) COUNTED_ALONE(Barrier_init, 3, kLater)

// The reasons why a call goes to the MPI library.
#define BLINK_MPI_REASONS(REASON)                                                                      \
  REASON(kUnbound, "libblink_mpi.so has no binding to this MPI library")                               \
  REASON(kOneRank, "a communicator of one rank")                                                       \
  REASON(kInter, "an intercommunicator")                                                               \
  REASON(kElsewhere, "not all ranks are under the same blink run --mpi, or not on this host")               \
  REASON(kEarly, "the first calls on a communicator (BLINK_MPI_AFTER)")                                \
  REASON(kHosts, "across hosts, where Blink serves Allreduce only")                                    \
  REASON(kUneven, "across hosts with different numbers of ranks")                                      \
  REASON(kApart, "no host has more than one of the ranks")                                             \
  REASON(kSetup, "the ranks could not share memory")                                                   \
  REASON(kType, "a type or operation that Blink does not reduce")                                      \
  REASON(kEmpty, "nothing to move")                                                                    \
  REASON(kAtOnce, "at most 256 bytes from or to one rank, which MPI sends without waiting for the receiver")  \
  REASON(kLarge, "more than 2^31 bytes")                                                               \
  REASON(kArguments, "arguments that the MPI library must check")                                      \
  REASON(kNoPlan, "too large for the plans of this job")                                               \
  REASON(kLater, "nonblocking or persistent")                                                          \
  REASON(kOther, "a collective that Blink does not serve")

// All functions, in one order, through the given macros.
#define BLINK_MPI_FUNCTIONS(HANDLED, ALONE, COUNTED, COUNTED_ALONE)                          \
  BLINK_MPI_COLLECTIVES(HANDLED, COUNTED) BLINK_MPI_ALONE(ALONE, COUNTED_ALONE)              \
  BLINK_MPI_4_COLLECTIVES(COUNTED) BLINK_MPI_4_ALONE(COUNTED_ALONE) ALONE(Finalize, 0)

#define BLINK_MPI_BOTH_(name, ...) k_##name, k_##name##_c,
#define BLINK_MPI_ONE_(name, ...) k_##name,
enum blink_mpi_function {
  BLINK_MPI_FUNCTIONS(BLINK_MPI_BOTH_, BLINK_MPI_ONE_, BLINK_MPI_BOTH_, BLINK_MPI_ONE_)
  kFunctions
};
#undef BLINK_MPI_BOTH_
#undef BLINK_MPI_ONE_

#define BLINK_MPI_REASON_(name, text) name,
enum blink_mpi_reason { BLINK_MPI_REASONS(BLINK_MPI_REASON_) kReasons };
#undef BLINK_MPI_REASON_

#endif
