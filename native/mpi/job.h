// The ranks of this job's world that run under libblink_mpi.so. A rank may query the others by a collective only if all
// of them take part. So each announces itself before MPI_Init, by a file in the directory BLINK_MPI_RANKS; when
// MPI_Init has returned, all have done so.
//
// Only ranks of this host count, unless the user confirms that all hosts share the directory (BLINK_MPI_SHARED_DIR).
// Then all ranks must be present, since ranks that miss another one would decide differently from the rest.
#pragma once

#include <cstdint>

namespace blink::mpi {

// Announces this process; to be called before MPI_Init, so that the others can wait for it.
void announce();
// True if all these ranks of the world are present; with BLINK_MPI_SHARED_DIR a missing rank ends the job.
bool are_here(const int* world_ranks, int count);
// This process's numbers from the launcher's variables; −1: unknown.
int world_rank();
int world_size();
// Equal for processes that can share memory: the boot id and the network namespace, or BLINK_HOSTID.
std::uint64_t host_number();

}  // namespace blink::mpi
