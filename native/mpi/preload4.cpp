// libblink_mpi4.so: the functions of MPI 4, beside libblink_mpi.so, which knows where they go.
#include "core.h"
#include "forward.h"

#define SECOND(name, n) FORWARD(name##_c, n, )
#define NOT_HERE(name, n, why)
#define ALONE(name, n) FORWARD(name, n, )
#define HANDLED(name, n) ALONE(name, n) SECOND(name, n)
#define COUNTED(name, n, why) FORWARD(name, n, blink_mpi_passed(k_##name, why))

extern "C" {
BLINK_MPI_COLLECTIVES(SECOND, NOT_HERE)
BLINK_MPI_4_COLLECTIVES(HANDLED, ALONE, COUNTED)
}
