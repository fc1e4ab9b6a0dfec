// libblink_mpi4.so and, of this file as well, libblink_mpi41.so: the functions of MPI 4 and of MPI 4.1, beside
// libblink_mpi.so, which knows where they go.
#include "core.h"
#include "forward.h"

#define SECOND(name, n) FORWARD(name##_c, n, )
#define NOT_HERE(name, n, why)
#define ALONE(name, n) FORWARD(name, n, )
#define HANDLED(name, n) ALONE(name, n) SECOND(name, n)
#define COUNTED(name, n, why) FORWARD(name, n, blink_mpi_passed(k_##name, why))

extern "C" {
#if defined(BLINK_MPI_41)
BLINK_MPI_41_ALONE(ALONE)
#else
BLINK_MPI_COLLECTIVES(SECOND, NOT_HERE)
BLINK_MPI_4_COLLECTIVES(HANDLED, ALONE, COUNTED)
#endif
}
