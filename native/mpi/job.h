// Which ranks of this job's world run under libblink_mpi.so. A rank may only ask the others by a collective where all of
// them answer, so each says that it is there before MPI_Init, by a file in the directory that BLINK_MPI_RANKS names; when
// MPI_Init has returned, all of them have.
//
// Those of this host alone count, unless the user has said that all hosts see that directory (BLINK_MPI_SHARED_DIR): then
// all ranks must be there, since those who miss one would do otherwise than those who do not.
#pragma once

#include <cstdint>

namespace blink::mpi {

// This process is there; before MPI_Init, or nobody would know whom to wait for.
void announce();
// Whether all these ranks of the world are; ends the job where the user has said so and they are not.
bool are_here(const int* world_ranks, int count);
// Of this process, as the launcher says it; −1: it does not.
int world_rank();
int world_size();
// Equal for processes that can share memory: the kernel's boot and the network namespace, or BLINK_HOSTID.
std::uint64_t host_number();

}  // namespace blink::mpi
