// The functions of MPI that libblink_mpi.so comes before, each with how many arguments it has. All are integers, handles
// or pointers: one register or one word of the stack each, whatever the MPI library, so that one build serves them all.
//
//   HANDLED  binding.inc has a function for it, and one for the second form of MPI 4 (_c, counts of MPI_Count)
//   ALONE    the binding has one for it, without a second form
//   COUNTED  goes to the MPI library; counted with the reason
#ifndef BLINK_MPI_FUNCTIONS_H
#define BLINK_MPI_FUNCTIONS_H

#define BLINK_MPI_COLLECTIVES(HANDLED, COUNTED)                                                            \
  HANDLED(Allreduce, 6) HANDLED(Bcast, 5) HANDLED(Reduce, 7) HANDLED(Allgather, 7) HANDLED(Allgatherv, 8)  \
  HANDLED(Reduce_scatter, 6) HANDLED(Reduce_scatter_block, 6) HANDLED(Gather, 8) HANDLED(Scatter, 8)       \
  HANDLED(Alltoall, 7) HANDLED(Gatherv, 9) HANDLED(Scatterv, 9) HANDLED(Alltoallv, 9)                      \
  HANDLED(Iallreduce, 7) HANDLED(Ibcast, 6) HANDLED(Ireduce, 8) HANDLED(Iallgather, 8)                     \
  HANDLED(Iallgatherv, 9) HANDLED(Ireduce_scatter, 7) HANDLED(Ireduce_scatter_block, 7)                    \
  HANDLED(Igather, 9) HANDLED(Iscatter, 9) HANDLED(Ialltoall, 8) HANDLED(Igatherv, 10)                     \
  HANDLED(Iscatterv, 10) HANDLED(Ialltoallv, 10)                                                           \
  COUNTED(Alltoallw, 9, kOther) COUNTED(Scan, 6, kOther) COUNTED(Exscan, 6, kOther)                        \
  COUNTED(Ialltoallw, 10, kOther) COUNTED(Iscan, 7, kOther) COUNTED(Iexscan, 7, kOther)

// What nonblocking calls end with, and all else that is no more than one function.
#define BLINK_MPI_ALONE(ALONE)                                                                             \
  ALONE(Barrier, 1) ALONE(Ibarrier, 2) ALONE(Init, 2) ALONE(Init_thread, 4) ALONE(Wait, 2) ALONE(Test, 3)  \
  ALONE(Waitall, 3) ALONE(Waitany, 4) ALONE(Waitsome, 5) ALONE(Testall, 4) ALONE(Testany, 5)               \
  ALONE(Testsome, 5) ALONE(Request_get_status, 3) ALONE(Request_free, 1) ALONE(Cancel, 1)                  \
  ALONE(Start, 1) ALONE(Startall, 2)                                                                      \
  ALONE(Comm_dup, 2) ALONE(Comm_dup_with_info, 3) ALONE(Comm_split, 4) ALONE(Comm_split_type, 5) ALONE(Comm_create, 3)

// Those of MPI 4, beside NAME_c of every HANDLED one. A library of their own (libblink_mpi4.so) comes before them, which
// is preloaded only where the MPI library has them: programs look whether there are such functions.
#define BLINK_MPI_4_COLLECTIVES(HANDLED, ALONE, COUNTED)                                                   \
  HANDLED(Allreduce_init, 8) HANDLED(Bcast_init, 7) HANDLED(Reduce_init, 9) HANDLED(Allgather_init, 9)     \
  HANDLED(Allgatherv_init, 10) HANDLED(Reduce_scatter_init, 8) HANDLED(Reduce_scatter_block_init, 8)       \
  HANDLED(Gather_init, 10) HANDLED(Scatter_init, 10) HANDLED(Alltoall_init, 9) HANDLED(Gatherv_init, 11)   \
  HANDLED(Scatterv_init, 11) HANDLED(Alltoallv_init, 11) ALONE(Barrier_init, 3)                            \
  COUNTED(Alltoallw_c, 9, kOther) COUNTED(Scan_c, 6, kOther) COUNTED(Exscan_c, 6, kOther)

// Those of MPI 4.1, in a third one (libblink_mpi41.so).
#define BLINK_MPI_41_ALONE(ALONE)                                                                          \
  ALONE(Request_get_status_all, 4) ALONE(Request_get_status_any, 5) ALONE(Request_get_status_some, 5)

// Why a call went to the MPI library.
#define BLINK_MPI_REASONS(REASON)                                                                      \
  REASON(kUnbound, "libblink_mpi.so could not be joined to this MPI library")                          \
  REASON(kOneRank, "a communicator of one rank")                                                       \
  REASON(kInter, "an inter-communicator")                                                              \
  REASON(kElsewhere, "not all ranks are under the same blink run --mpi, or not on this host")               \
  REASON(kEarly, "the first calls on a communicator (BLINK_MPI_AFTER)")                                \
  REASON(kHosts, "of ranks on several hosts: nonblocking, or not one that Blink serves there")          \
  REASON(kApart, "on no host more than one of the ranks")                                              \
  REASON(kSetup, "the ranks could not share memory")                                                   \
  REASON(kType, "a type or an operation that Blink does not reduce with")                              \
  REASON(kEmpty, "nothing to move")                                                                    \
  REASON(kLarge, "more than 2^31 bytes")                                                               \
  REASON(kArguments, "arguments that are the MPI library's to judge")                                  \
  REASON(kNoPlan, "no plan has room for it")                                                           \
  REASON(kUnmade, "nonblocking, and before the communicator's first call that is not")                 \
  REASON(kOther, "a collective that Blink does not have")

// Any X of every function, in one order.
#define BLINK_MPI_FUNCTIONS(HANDLED, ALONE, COUNTED)                        \
  BLINK_MPI_COLLECTIVES(HANDLED, COUNTED) BLINK_MPI_ALONE(ALONE)            \
  BLINK_MPI_4_COLLECTIVES(HANDLED, ALONE, COUNTED) BLINK_MPI_41_ALONE(ALONE) ALONE(Finalize, 0)

#define BLINK_MPI_HANDLED_(name, n) k_##name, k_##name##_c,
#define BLINK_MPI_ALONE_(name, n) k_##name,
#define BLINK_MPI_COUNTED_(name, n, why) k_##name,
enum blink_mpi_function {
  BLINK_MPI_FUNCTIONS(BLINK_MPI_HANDLED_, BLINK_MPI_ALONE_, BLINK_MPI_COUNTED_)
  kFunctions
};
#undef BLINK_MPI_HANDLED_
#undef BLINK_MPI_ALONE_
#undef BLINK_MPI_COUNTED_

#define BLINK_MPI_REASON_(name, text) name,
enum blink_mpi_reason { BLINK_MPI_REASONS(BLINK_MPI_REASON_) kReasons };
#undef BLINK_MPI_REASON_

#endif
