// A rank process that measures an MPI library: `mpirun -n N mpi_peer SOCKET`. See peer.h and protocol.py.
#include "peer.h"

#include <mpi.h>

static MPI_Datatype type_of(uint32_t dtype) {
  switch (dtype) {
    case BLINK_INT8: return MPI_INT8_T;
    case BLINK_UINT8: return MPI_UINT8_T;
    case BLINK_INT16: return MPI_INT16_T;
    case BLINK_UINT16: return MPI_UINT16_T;
    case BLINK_INT32: return MPI_INT32_T;
    case BLINK_UINT32: return MPI_UINT32_T;
    case BLINK_INT64: return MPI_INT64_T;
    case BLINK_UINT64: return MPI_UINT64_T;
    case BLINK_FLOAT32: return MPI_FLOAT;
    case BLINK_FLOAT64: return MPI_DOUBLE;
    default: return MPI_DATATYPE_NULL;
  }
}

static MPI_Op op_of(uint32_t op) {
  switch (op) {
    case BLINK_SUM: return MPI_SUM;
    case BLINK_PROD: return MPI_PROD;
    case BLINK_MIN: return MPI_MIN;
    case BLINK_MAX: return MPI_MAX;
    case BLINK_BAND: return MPI_BAND;
    case BLINK_BOR: return MPI_BOR;
    case BLINK_BXOR: return MPI_BXOR;
    default: return MPI_OP_NULL;
  }
}

static const char* refuse(void* self, const struct peer_command* c) {
  (void)self;
  if (c->collective > BLINK_SENDRECV) return "MPI has no such collective";
  if (peer_reduces(c) && op_of(c->op) == MPI_OP_NULL) return "MPI has no such operation";
  if (peer_reduces(c) && type_of(c->dtype) == MPI_DATATYPE_NULL) return "MPI cannot reduce this type";
  if (c->flags & PEER_SHARED) return "an MPI peer has private buffers only";
  uint64_t elements = c->count * (type_of(c->dtype) == MPI_DATATYPE_NULL ? c->itemsize : 1);
  if (elements > 0x7fffffff) return "more than 2^31 - 1 elements in a block";
  return NULL;
}

static void barrier(void* self) {
  (void)self;
  MPI_Barrier(MPI_COMM_WORLD);
}

// NCCL's in-place ReduceScatter puts a rank's block at its own offset, MPI's at the front of the buffer.
static int reduce_scatter(const struct peer_work* w, char* in, int n, MPI_Datatype type, MPI_Op op) {
  if (in != MPI_IN_PLACE) return MPI_Reduce_scatter_block(in, w->out, n, type, op, MPI_COMM_WORLD);
  int failed = MPI_Reduce_scatter_block(MPI_IN_PLACE, w->in, n, type, op, MPI_COMM_WORLD);
  if (w->command.flags & PEER_CHECK && w->out != w->in) memmove(w->out, w->in, w->command.count * w->command.itemsize);
  return failed;
}

static int sendrecv(const struct peer_work* w, int n, MPI_Datatype type) {
  if (w->in) return MPI_Send(w->in, n, type, w->command.dst, 0, MPI_COMM_WORLD);
  if (w->out) return MPI_Recv(w->out, n, type, w->command.src, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  return MPI_SUCCESS;
}

static const char* run(void* self, const struct peer_work* w) {
  (void)self;
  const struct peer_command* c = &w->command;
  MPI_Datatype type = type_of(c->dtype);
  int n = (int)c->count;
  if (type == MPI_DATATYPE_NULL) {
    type = MPI_BYTE;
    n *= (int)c->itemsize;
  }
  MPI_Op op = op_of(c->op);
  char* in = c->flags & PEER_IN_PLACE && w->in && w->out ? (char*)MPI_IN_PLACE : w->in;
  int failed = MPI_SUCCESS;
  switch (c->collective) {
    case BLINK_BROADCAST:
      if (w->in && w->in != w->out) memcpy(w->out, w->in, c->count * c->itemsize);
      failed = MPI_Bcast(w->out, n, type, c->root, MPI_COMM_WORLD);
      break;
    case BLINK_REDUCE: failed = MPI_Reduce(in, w->out, n, type, op, c->root, MPI_COMM_WORLD); break;
    case BLINK_ALLREDUCE: failed = MPI_Allreduce(in, w->out, n, type, op, MPI_COMM_WORLD); break;
    case BLINK_ALLGATHER: failed = MPI_Allgather(in, n, type, w->out, n, type, MPI_COMM_WORLD); break;
    case BLINK_REDUCE_SCATTER: failed = reduce_scatter(w, in, n, type, op); break;
    case BLINK_GATHER: failed = MPI_Gather(in, n, type, w->out, n, type, c->root, MPI_COMM_WORLD); break;
    case BLINK_SCATTER:
      failed = in == MPI_IN_PLACE ? MPI_Scatter(w->in, n, type, MPI_IN_PLACE, n, type, c->root, MPI_COMM_WORLD)
                                  : MPI_Scatter(in, n, type, w->out, n, type, c->root, MPI_COMM_WORLD);
      break;
    case BLINK_ALLTOALL: failed = MPI_Alltoall(in, n, type, w->out, n, type, MPI_COMM_WORLD); break;
    default: failed = sendrecv(w, n, type);
  }
  return failed == MPI_SUCCESS ? NULL : "MPI reports an error";
}

int main(int argc, char** argv) {
  int rank, size, length;
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  if (argc != 2) {
    fprintf(stderr, "usage: mpi_peer SOCKET\n");
    return 2;
  }
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Get_library_version(library, &length);
  int fd = peer_connect(argv[1], rank, size, library);
  struct peer_library mpi = {barrier, run, refuse, NULL};
  peer_serve(fd, &mpi);
  MPI_Finalize();
  return 0;
}
