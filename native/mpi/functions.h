// The functions of MPI that libblink_mpi.so comes before, each with how many arguments it has. All are integers, handles
// or pointers: one register or one word of the stack each, whatever the MPI library, so that one build serves them all.
//
//   HANDLED        binding.inc has a function for it, and one for the second form of MPI 4 (_c, counts of MPI_Count)
//   ALONE          the binding has one for it, without a second form
//   COUNTED        goes to the MPI library, and so does its second form; counted with the reason
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

// Those of MPI 4, beside the second forms. A library of their own (libblink_mpi4.so) comes before them, which is preloaded
// only where the MPI library has them: programs look whether there are such functions.
#define BLINK_MPI_4_COLLECTIVES(COUNTED)                                                                       \
  COUNTED(Allreduce_init, 8, kLater) COUNTED(Bcast_init, 7, kLater) COUNTED(Reduce_init, 9, kLater)            \
  COUNTED(Allgather_init, 9, kLater) COUNTED(Allgatherv_init, 10, kLater) COUNTED(Gather_init, 10, kLater)     \
  COUNTED(Reduce_scatter_init, 8, kLater) COUNTED(Reduce_scatter_block_init, 8, kLater)                        \
  COUNTED(Scatter_init, 10, kLater) COUNTED(Alltoall_init, 9, kLater) COUNTED(Gatherv_init, 11, kLater)        \
  COUNTED(Scatterv_init, 11, kLater) COUNTED(Alltoallv_init, 11, kLater) COUNTED(Alltoallw_init, 11, kLater)   \
  COUNTED(Scan_init, 8, kLater) COUNTED(Exscan_init, 8, kLater)
#define BLINK_MPI_4_ALONE(COUNTED_ALONE) COUNTED_ALONE(Barrier_init, 3, kLater)

// Why a call went to the MPI library.
#define BLINK_MPI_REASONS(REASON)                                                                      \
  REASON(kUnbound, "libblink_mpi.so could not be joined to this MPI library")                          \
  REASON(kOneRank, "a communicator of one rank")                                                       \
  REASON(kInter, "an inter-communicator")                                                              \
  REASON(kElsewhere, "not all ranks are under the same blink run --mpi, or not on this host")               \
  REASON(kEarly, "the first calls on a communicator (BLINK_MPI_AFTER)")                                \
  REASON(kHosts, "among several hosts, where Blink has Allreduce alone")                               \
  REASON(kUneven, "among several hosts with different numbers of ranks")                               \
  REASON(kApart, "on no host more than one of the ranks")                                              \
  REASON(kSetup, "the ranks could not share memory")                                                   \
  REASON(kType, "a type or an operation that Blink does not reduce with")                              \
  REASON(kEmpty, "nothing to move")                                                                    \
  REASON(kAtOnce, "at most 256 bytes from or to one rank, which MPI sends without a look at the receiver")  \
  REASON(kLarge, "more than 2^31 bytes")                                                               \
  REASON(kArguments, "arguments that are the MPI library's to judge")                                  \
  REASON(kNoPlan, "no plan has room for it")                                                           \
  REASON(kLater, "nonblocking or persistent")                                                          \
  REASON(kOther, "a collective that Blink does not have")

// Any X of every function, in one order.
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
