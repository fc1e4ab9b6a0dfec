// The functions of MPI that libblink_mpi.so comes before, each with how many arguments it has. All are integers, handles
// or pointers: one register or one word of the stack each, whatever the MPI library, so that one build serves them all.
//
//   HANDLED  binding.inc has a function for it, and one for the second form of MPI 4 (_c, counts of MPI_Count)
//   COUNTED  goes to the MPI library; counted with the reason
#ifndef BLINK_MPI_FUNCTIONS_H
#define BLINK_MPI_FUNCTIONS_H

#define BLINK_MPI_COLLECTIVES(HANDLED, COUNTED)                                                            \
  HANDLED(Allreduce, 6) HANDLED(Bcast, 5) HANDLED(Reduce, 7) HANDLED(Allgather, 7) HANDLED(Allgatherv, 8)  \
  HANDLED(Reduce_scatter, 6) HANDLED(Reduce_scatter_block, 6) HANDLED(Gather, 8) HANDLED(Scatter, 8)       \
  HANDLED(Alltoall, 7) HANDLED(Gatherv, 9) HANDLED(Scatterv, 9) HANDLED(Alltoallv, 9)                      \
  COUNTED(Alltoallw, 9, kOther) COUNTED(Scan, 6, kOther) COUNTED(Exscan, 6, kOther)                        \
  COUNTED(Iallreduce, 7, kNonblocking) COUNTED(Ibcast, 6, kNonblocking) COUNTED(Ireduce, 8, kNonblocking)  \
  COUNTED(Iallgather, 8, kNonblocking) COUNTED(Iallgatherv, 9, kNonblocking)                               \
  COUNTED(Ireduce_scatter, 7, kNonblocking) COUNTED(Ireduce_scatter_block, 7, kNonblocking)                \
  COUNTED(Igather, 9, kNonblocking) COUNTED(Igatherv, 10, kNonblocking) COUNTED(Iscatter, 9, kNonblocking) \
  COUNTED(Iscatterv, 10, kNonblocking) COUNTED(Ialltoall, 8, kNonblocking)                                 \
  COUNTED(Ialltoallv, 10, kNonblocking) COUNTED(Ialltoallw, 10, kNonblocking)                              \
  COUNTED(Iscan, 7, kNonblocking) COUNTED(Iexscan, 7, kNonblocking) COUNTED(Ibarrier, 2, kNonblocking)

// Those of MPI 4, beside NAME_c of every HANDLED one. A library of their own (libblink_mpi4.so) comes before them, which
// is preloaded only where the MPI library has them: programs look whether there are such functions.
#define BLINK_MPI_4_COLLECTIVES(COUNTED)                                                                   \
  COUNTED(Alltoallw_c, 9, kOther) COUNTED(Scan_c, 6, kOther) COUNTED(Exscan_c, 6, kOther)                  \
  COUNTED(Allreduce_init, 8, kPersistent) COUNTED(Bcast_init, 7, kPersistent)                              \
  COUNTED(Reduce_init, 9, kPersistent) COUNTED(Allgather_init, 9, kPersistent)                             \
  COUNTED(Allgatherv_init, 10, kPersistent) COUNTED(Reduce_scatter_init, 8, kPersistent)                   \
  COUNTED(Reduce_scatter_block_init, 8, kPersistent) COUNTED(Gather_init, 10, kPersistent)                 \
  COUNTED(Scatter_init, 10, kPersistent) COUNTED(Alltoall_init, 9, kPersistent)                            \
  COUNTED(Alltoallv_init, 11, kPersistent) COUNTED(Barrier_init, 3, kPersistent)

// Why a call went to the MPI library.
#define BLINK_MPI_REASONS(REASON)                                                                      \
  REASON(kUnbound, "libblink_mpi.so could not be joined to this MPI library")                          \
  REASON(kOneRank, "a communicator of one rank")                                                       \
  REASON(kInter, "an inter-communicator")                                                              \
  REASON(kElsewhere, "not all ranks are on this host under the same blink run --mpi")                  \
  REASON(kEarly, "the first calls on a communicator (BLINK_MPI_AFTER)")                                \
  REASON(kSetup, "the ranks could not share memory")                                                   \
  REASON(kType, "a type or an operation that Blink does not reduce with")                              \
  REASON(kEmpty, "nothing to move")                                                                    \
  REASON(kLarge, "more than 2^31 bytes")                                                               \
  REASON(kArguments, "arguments that are the MPI library's to judge")                                  \
  REASON(kAtOnce, "so little that the MPI library, which sends it at once, is faster")                 \
  REASON(kNoPlan, "no plan has room for it")                                                           \
  REASON(kNonblocking, "a nonblocking collective")                                                     \
  REASON(kPersistent, "a persistent collective")                                                       \
  REASON(kOther, "a collective that Blink does not have")

#define BLINK_MPI_HANDLED_(name, n) k_##name, k_##name##_c,
#define BLINK_MPI_COUNTED_(name, n, why) k_##name,
enum blink_mpi_function {
  BLINK_MPI_COLLECTIVES(BLINK_MPI_HANDLED_, BLINK_MPI_COUNTED_)
  BLINK_MPI_4_COLLECTIVES(BLINK_MPI_COUNTED_)
  k_Barrier,
  k_Init, k_Init_thread, k_Finalize,
  kFunctions
};
#undef BLINK_MPI_HANDLED_
#undef BLINK_MPI_COUNTED_

#define BLINK_MPI_REASON_(name, text) name,
enum blink_mpi_reason { BLINK_MPI_REASONS(BLINK_MPI_REASON_) kReasons };
#undef BLINK_MPI_REASON_

#endif
