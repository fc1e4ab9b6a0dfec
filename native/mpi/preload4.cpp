// libblink_mpi4.so: the functions of MPI 4, forwarded to the destinations that libblink_mpi.so knows.
#include "core.h"
#include "forward.h"

#define SECOND(name, n) FORWARD(name##_c, n, )
#define COUNTED(name, n, why) FORWARD(name, n, blink_mpi_passed(k_##name, why))
#define COUNTED_SECOND(name, n, why) FORWARD(name##_c, n, blink_mpi_passed(k_##name, why))
#define COUNTED_BOTH(name, n, why) COUNTED(name, n, why) COUNTED_SECOND(name, n, why)

extern "C" {
BLINK_MPI_COLLECTIVES(SECOND, COUNTED_SECOND)
BLINK_MPI_4_COLLECTIVES(COUNTED_BOTH)
BLINK_MPI_4_ALONE(COUNTED)
}
