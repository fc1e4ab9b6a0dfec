// Calls MPI_ and PMPI_ side by side and compares every byte: all types, operations, roots and sizes, in place and not,
// on several communicators. Prints "N calls, M wrong" and exits with 1 if any is wrong.
#include <float.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int calls = 0, wrong = 0;
static MPI_Comm comm;
static const char* name;
static int rank, size;

enum { MOST = 1 << 22 };
static char *in, *out, *expected;

// Small integers, so that sums and products of eight are exact in every type.
static void fill(char* at, MPI_Datatype type, int elements, int seed) {
  int bytes;
  PMPI_Type_size(type, &bytes);
  for (int i = 0; i < elements; ++i) {
    int value = 1 + (i * 7 + seed * 3 + rank * 5) % 3;
    if (type == MPI_FLOAT) ((float*)at)[i] = (float)value;
    else if (type == MPI_DOUBLE) ((double*)at)[i] = value;
    else if (type == MPI_C_FLOAT_COMPLEX) ((float*)at)[2 * i] = (float)value, ((float*)at)[2 * i + 1] = (float)-value;
    else if (bytes == 1) at[i] = (char)value;
    else if (bytes == 2) ((int16_t*)at)[i] = (int16_t)value;
    else if (bytes == 4) ((int32_t*)at)[i] = value;
    else if (bytes == 8) ((int64_t*)at)[i] = value;
  }
}

static void noise(char* at, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; ++i) at[i] = (char)((i * 2654435761u + seed * 977u + (unsigned)rank * 131u) >> 5);
}

// A long double of x86 has six bytes of padding, which MPICH's own Gather leaves behind with four ranks.
static int padded;

static void compare(const char* what, int got, int wanted, size_t bytes) {
  ++calls;
  for (size_t i = 0; padded && i < bytes; i += 16) memset(out + i + 10, 0, 6), memset(expected + i + 10, 0, 6);
  if (got == wanted && memcmp(out, expected, bytes) == 0) return;
  ++wrong;
  if (wrong < 20) fprintf(stderr, "rank %d of %s: %s is wrong (codes %d, %d)\n", rank, name, what, got, wanted);
}

// Both outputs start equal, so that bytes which a call must not touch are compared, too.
static void fresh(size_t bytes) {
  noise(out, bytes, 7);
  memcpy(expected, out, bytes);
}

// A part of `most` elements, from none to all.
static int part(int i, int j, int most) { return (int)((long)most * ((i * 3 + j * 5) % 4) / 3); }

static void reductions(MPI_Datatype type, MPI_Op op, int count) {
  int bytes;
  PMPI_Type_size(type, &bytes);
  size_t all = (size_t)bytes * (size_t)count * (size_t)size;
  fill(in, type, count * size, count);
  fresh(all);
  compare("Allreduce", MPI_Allreduce(in, out, count, type, op, comm), PMPI_Allreduce(in, expected, count, type, op, comm), all);
  fill(out, type, count, 1), fill(expected, type, count, 1);
  compare("Allreduce in place", MPI_Allreduce(MPI_IN_PLACE, out, count, type, op, comm),
          PMPI_Allreduce(MPI_IN_PLACE, expected, count, type, op, comm), all);
  for (int root = 0; root < size; ++root) {
    fresh(all);
    compare("Reduce", MPI_Reduce(in, out, count, type, op, root, comm), PMPI_Reduce(in, expected, count, type, op, root, comm), all);
    // Compared with MPI's result out of place: in place MPICH 4.0.2 crashes from 20 KB on if the root is not 0.
    fill(out, type, count, 2), fill(expected, type, count, 2), fill(in, type, count, 2);
    compare("Reduce in place",
            rank == root ? MPI_Reduce(MPI_IN_PLACE, out, count, type, op, root, comm) : MPI_Reduce(out, NULL, count, type, op, root, comm),
            PMPI_Reduce(in, rank == root ? expected : NULL, count, type, op, root, comm), all);
    fill(in, type, count * size, count);
  }
  fresh(all);
  compare("Reduce_scatter_block", MPI_Reduce_scatter_block(in, out, count, type, op, comm),
          PMPI_Reduce_scatter_block(in, expected, count, type, op, comm), all);
  fill(out, type, count * size, 3), fill(expected, type, count * size, 3);
  // In place only the first block of the buffer is defined afterwards.
  compare("Reduce_scatter_block in place", MPI_Reduce_scatter_block(MPI_IN_PLACE, out, count, type, op, comm),
          PMPI_Reduce_scatter_block(MPI_IN_PLACE, expected, count, type, op, comm), (size_t)bytes * (size_t)count);
  int counts[64];
  for (int uneven = 0; uneven < 3; ++uneven) {
    for (int i = 0; i < size; ++i) counts[i] = uneven == 2 ? part(i, 2, count) : uneven && i == 0 ? count - 1 : count;
    fresh(all);
    compare("Reduce_scatter", MPI_Reduce_scatter(in, out, counts, type, op, comm),
            PMPI_Reduce_scatter(in, expected, counts, type, op, comm), all);
    // Compared with MPI's result out of place: in place MPICH 4.0.2 stops if a block overlaps its destination.
    memcpy(out, in, all);
    compare("Reduce_scatter in place", MPI_Reduce_scatter(MPI_IN_PLACE, out, counts, type, op, comm),
            PMPI_Reduce_scatter(in, expected, counts, type, op, comm), (size_t)bytes * (size_t)counts[rank]);
  }
}

// Places blocks with gaps between them, in order or backward. Backward the first block is last, and all others are
// before the buffer, which begins at the returned element.
static int lay(int backward, const int* counts, int* places) {
  int at = 0;
  for (int k = 0; k < size; ++k) {
    int i = backward ? size - 1 - k : k;
    places[i] = at;
    at += counts[i] + 1;
  }
  int begin = backward ? places[0] : 0;
  for (int i = 0; i < size; ++i) places[i] -= begin;
  return begin;
}

// Blocks of several sizes, some empty: from rank i to rank j the same part of `most`, times `n` of one type, which
// match `others` of another.
static void ragged(MPI_Datatype type, int n, MPI_Datatype other, int others, int most) {
  MPI_Aint low, extent, other_extent;
  PMPI_Type_get_extent(type, &low, &extent);
  PMPI_Type_get_extent(other, &low, &other_extent);
  size_t block = (size_t)extent * (size_t)(most * n + 1), other_block = (size_t)other_extent * (size_t)(most * others + 1);
  size_t all = (block > other_block ? block : other_block) * (size_t)size;
  int given[64], from[64], got[64], to[64];
  noise(in, all, (unsigned)most);
  for (int backward = 0; backward < 2; ++backward) {
    for (int root = 0; root < size; ++root) {
      const int own = part(rank, root, most) * n, mine = part(root, rank, most) * others, is_root = rank == root;
      for (int i = 0; i < size; ++i) got[i] = part(i, root, most) * others, given[i] = part(root, i, most) * n;
      size_t into = (size_t)lay(backward, got, to) * (size_t)other_extent;
      char* source = in + (size_t)lay(backward, given, from) * (size_t)extent;
      // Only the root knows the others' counts.
      const int *counts = is_root ? got : NULL, *places = is_root ? to : NULL;
      fresh(all);
      compare("Gatherv", MPI_Gatherv(in, own, type, is_root ? out + into : NULL, counts, places, other, root, comm),
              PMPI_Gatherv(in, own, type, is_root ? expected + into : NULL, counts, places, other, root, comm), all);
      fresh(all);
      const void* at = is_root ? MPI_IN_PLACE : (void*)in;
      compare("Gatherv in place", MPI_Gatherv(at, own, type, out + into, counts, places, other, root, comm),
              PMPI_Gatherv(at, own, type, expected + into, counts, places, other, root, comm), all);
      counts = is_root ? given : NULL, places = is_root ? from : NULL;
      fresh(all);
      compare("Scatterv", MPI_Scatterv(source, counts, places, type, out, mine, other, root, comm),
              PMPI_Scatterv(source, counts, places, type, expected, mine, other, root, comm), all);
      fresh(all);
      compare("Scatterv in place", MPI_Scatterv(source, counts, places, type, is_root ? MPI_IN_PLACE : out, mine, other, root, comm),
              PMPI_Scatterv(source, counts, places, type, is_root ? MPI_IN_PLACE : expected, mine, other, root, comm), all);
    }
    for (int i = 0; i < size; ++i) got[i] = part(i, 1, most) * others;
    size_t into = (size_t)lay(backward, got, to) * (size_t)other_extent;
    fresh(all);
    compare("Allgatherv of parts", MPI_Allgatherv(in, part(rank, 1, most) * n, type, out + into, got, to, other, comm),
            PMPI_Allgatherv(in, part(rank, 1, most) * n, type, expected + into, got, to, other, comm), all);
    fresh(all);
    compare("Allgatherv of parts in place", MPI_Allgatherv(MPI_IN_PLACE, 0, type, out + into, got, to, other, comm),
            PMPI_Allgatherv(MPI_IN_PLACE, 0, type, expected + into, got, to, other, comm), all);
    for (int i = 0; i < size; ++i) given[i] = part(rank, i, most) * n, got[i] = part(i, rank, most) * others;
    into = (size_t)lay(backward, got, to) * (size_t)other_extent;
    char* source = in + (size_t)lay(!backward, given, from) * (size_t)extent;
    fresh(all);
    compare("Alltoallv", MPI_Alltoallv(source, given, from, type, out + into, got, to, other, comm),
            PMPI_Alltoallv(source, given, from, type, expected + into, got, to, other, comm), all);
    for (int i = 0; i < size; ++i) got[i] = part(rank + i, 0, most) * others;  // the same amount in both directions
    into = (size_t)lay(backward, got, to) * (size_t)other_extent;
    fresh(all);
    compare("Alltoallv in place", MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, type, out + into, got, to, other, comm),
            PMPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, type, expected + into, got, to, other, comm), all);
  }
}

// A move of `count` elements of one type, received as `others` of another with the same signature.
static void moves(MPI_Datatype type, int count, MPI_Datatype other, int others) {
  MPI_Aint low, extent, other_low, other_extent;
  PMPI_Type_get_extent(type, &low, &extent);
  PMPI_Type_get_extent(other, &other_low, &other_extent);
  size_t block = (size_t)extent * (size_t)count, other_block = (size_t)other_extent * (size_t)others;
  size_t all = (block > other_block ? block : other_block) * (size_t)size;
  noise(in, all, (unsigned)count);
  for (int root = 0; root < size; ++root) {
    fresh(all);
    if (rank == root) noise(out, block, 1), memcpy(expected, out, block);
    compare("Bcast", rank == root ? MPI_Bcast(out, count, type, root, comm) : MPI_Bcast(out, others, other, root, comm),
            rank == root ? PMPI_Bcast(expected, count, type, root, comm) : PMPI_Bcast(expected, others, other, root, comm), all);
    fresh(all);
    compare("Gather", MPI_Gather(in, count, type, out, others, other, root, comm),
            PMPI_Gather(in, count, type, expected, others, other, root, comm), all);
    fresh(all);
    const void* own = rank == root ? MPI_IN_PLACE : (void*)in;
    compare("Gather in place", MPI_Gather(own, count, type, out, others, other, root, comm),
            PMPI_Gather(own, count, type, expected, others, other, root, comm), all);
    fresh(all);
    compare("Scatter", MPI_Scatter(in, count, type, out, others, other, root, comm),
            PMPI_Scatter(in, count, type, expected, others, other, root, comm), all);
    fresh(all);
    compare("Scatter in place", MPI_Scatter(in, count, type, rank == root ? MPI_IN_PLACE : out, others, other, root, comm),
            PMPI_Scatter(in, count, type, rank == root ? MPI_IN_PLACE : expected, others, other, root, comm), all);
  }
  fresh(all);
  compare("Allgather", MPI_Allgather(in, count, type, out, others, other, comm),
          PMPI_Allgather(in, count, type, expected, others, other, comm), all);
  fresh(all);
  compare("Allgather in place", MPI_Allgather(MPI_IN_PLACE, 0, type, out, others, other, comm),
          PMPI_Allgather(MPI_IN_PLACE, 0, type, expected, others, other, comm), all);
  fresh(all);
  compare("Alltoall", MPI_Alltoall(in, count, type, out, others, other, comm),
          PMPI_Alltoall(in, count, type, expected, others, other, comm), all);
  fresh(all);
  compare("Alltoall in place", MPI_Alltoall(MPI_IN_PLACE, 0, type, out, others, other, comm),
          PMPI_Alltoall(MPI_IN_PLACE, 0, type, expected, others, other, comm), all);
  int counts[64], displs[64];
  for (int order = 0; order < 3; ++order) {
    for (int i = 0; i < size; ++i) {
      counts[i] = order == 2 && i == 0 && count == others ? others - 1 : others;
      displs[i] = (order == 1 ? size - 1 - i : i) * others;
    }
    int given = order == 2 && rank == 0 && count == others ? count - 1 : count;
    fresh(all);
    compare("Allgatherv", MPI_Allgatherv(in, given, type, out, counts, displs, other, comm),
            PMPI_Allgatherv(in, given, type, expected, counts, displs, other, comm), all);
    fresh(all);
    compare("Allgatherv in place", MPI_Allgatherv(MPI_IN_PLACE, 0, type, out, counts, displs, other, comm),
            PMPI_Allgatherv(MPI_IN_PLACE, 0, type, expected, counts, displs, other, comm), all);
  }
  const int units = count < others ? count : others;
  ragged(type, count / units, other, others / units, units);
}

static void first(void* a, void* b, int* n, MPI_Datatype* type) {
  (void)type;
  for (int i = 0; i < *n; ++i) ((int*)b)[i] = ((int*)a)[i] * 10 + ((int*)b)[i];
}

// Calls that Blink must leave to MPI, with the same results.
static void left(void) {
  MPI_Op own;
  PMPI_Op_create(first, 0, &own);
  fill(in, MPI_INT, 40, 1);
  fresh(400);
  compare("Allreduce of an own operation", MPI_Allreduce(in, out, 5, MPI_INT, own, comm), PMPI_Allreduce(in, expected, 5, MPI_INT, own, comm), 400);
  PMPI_Op_free(&own);
  fresh(400);
  compare("Allreduce of pairs", MPI_Allreduce(in, out, 3, MPI_2INT, MPI_MAXLOC, comm), PMPI_Allreduce(in, expected, 3, MPI_2INT, MPI_MAXLOC, comm), 400);
  fresh(400);
  compare("Allreduce of nothing", MPI_Allreduce(in, out, 0, MPI_INT, MPI_SUM, comm), PMPI_Allreduce(in, expected, 0, MPI_INT, MPI_SUM, comm), 400);
  compare("Bcast of nothing", MPI_Bcast(out, 0, MPI_INT, 0, comm), PMPI_Bcast(expected, 0, MPI_INT, 0, comm), 400);
  compare("Allreduce, logical", MPI_Allreduce(in, out, 5, MPI_INT, MPI_LAND, comm), PMPI_Allreduce(in, expected, 5, MPI_INT, MPI_LAND, comm), 400);
  fresh(400);
  compare("Scan", MPI_Scan(in, out, 5, MPI_INT, MPI_SUM, comm), PMPI_Scan(in, expected, 5, MPI_INT, MPI_SUM, comm), 400);
  MPI_Request a, b;
  fresh(400);
  int got = MPI_Iscan(in, out, 5, MPI_INT, MPI_SUM, comm, &a), wanted = PMPI_Iscan(in, expected, 5, MPI_INT, MPI_SUM, comm, &b);
  MPI_Wait(&a, MPI_STATUS_IGNORE), MPI_Wait(&b, MPI_STATUS_IGNORE);
  compare("Iscan", got, wanted, 400);
  fresh(400);
  got = MPI_Iallreduce(in, out, 5, MPI_INT, MPI_SUM, comm, &a), wanted = PMPI_Iallreduce(in, expected, 5, MPI_INT, MPI_SUM, comm, &b);
  MPI_Wait(&a, MPI_STATUS_IGNORE), MPI_Wait(&b, MPI_STATUS_IGNORE);
  compare("Iallreduce", got, wanted, 400);
#if MPI_VERSION >= 4
  MPI_Allreduce_init(in, out, 7, MPI_INT, MPI_SUM, comm, MPI_INFO_NULL, &a);
  fresh(400);
  got = MPI_Start(&a), MPI_Wait(&a, MPI_STATUS_IGNORE), MPI_Request_free(&a);
  compare("Allreduce_init", got, PMPI_Allreduce(in, expected, 7, MPI_INT, MPI_SUM, comm), 400);
#endif
#ifdef OPEN_MPI  // MPICH may be built without checks of arguments
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  compare("Allreduce with a wrong count", MPI_Allreduce(in, out, -1, MPI_INT, MPI_SUM, comm), PMPI_Allreduce(in, out, -1, MPI_INT, MPI_SUM, comm), 0);
  compare("Bcast with a wrong root", MPI_Bcast(out, 1, MPI_INT, size, comm), PMPI_Bcast(out, 1, MPI_INT, size, comm), 0);
  got = MPI_Allreduce(in, out, 1, MPI_FLOAT, MPI_BAND, comm), wanted = PMPI_Allreduce(in, expected, 1, MPI_FLOAT, MPI_BAND, comm);
  ++calls, wrong += got != wanted;
#endif
}

#if MPI_VERSION >= 4
// The functions with counts of MPI_Count and displacements of MPI_Aint.
static void long_counts(void) {
  const MPI_Count n = 37;
  MPI_Count counts[64];
  MPI_Aint places[64];
  int few[64], at[64];
  const size_t all = (size_t)size * 60 * sizeof(int);
  for (int i = 0, end = 0; i < size; end += few[i++]) few[i] = 20 + i % 3, at[i] = end, counts[i] = few[i], places[i] = end;
  const int own = few[rank], last = size - 1, is_root = rank == last;
  fill(in, MPI_INT, size * 60, 4);
#define BOTH(name, plain) fresh(all), compare(#name, MPI_##name, PMPI_##plain, all)
  BOTH(Allreduce_c(in, out, n, MPI_INT, MPI_SUM, comm), Allreduce(in, expected, 37, MPI_INT, MPI_SUM, comm));
  BOTH(Reduce_c(in, out, n, MPI_INT, MPI_MAX, last, comm), Reduce(in, expected, 37, MPI_INT, MPI_MAX, last, comm));
  BOTH(Bcast_c(is_root ? in : out, n, MPI_INT, last, comm), Bcast(is_root ? in : expected, 37, MPI_INT, last, comm));
  BOTH(Reduce_scatter_block_c(in, out, n, MPI_INT, MPI_SUM, comm), Reduce_scatter_block(in, expected, 37, MPI_INT, MPI_SUM, comm));
  BOTH(Reduce_scatter_c(in, out, counts, MPI_INT, MPI_SUM, comm), Reduce_scatter(in, expected, few, MPI_INT, MPI_SUM, comm));
  BOTH(Allgather_c(in, n, MPI_INT, out, n, MPI_INT, comm), Allgather(in, 37, MPI_INT, expected, 37, MPI_INT, comm));
  BOTH(Allgatherv_c(in, own, MPI_INT, out, counts, places, MPI_INT, comm), Allgatherv(in, own, MPI_INT, expected, few, at, MPI_INT, comm));
  BOTH(Gather_c(in, n, MPI_INT, out, n, MPI_INT, last, comm), Gather(in, 37, MPI_INT, expected, 37, MPI_INT, last, comm));
  BOTH(Gatherv_c(in, own, MPI_INT, out, counts, places, MPI_INT, last, comm), Gatherv(in, own, MPI_INT, expected, few, at, MPI_INT, last, comm));
  BOTH(Scatter_c(in, n, MPI_INT, out, n, MPI_INT, last, comm), Scatter(in, 37, MPI_INT, expected, 37, MPI_INT, last, comm));
  BOTH(Scatterv_c(in, counts, places, MPI_INT, out, own, MPI_INT, last, comm), Scatterv(in, few, at, MPI_INT, expected, own, MPI_INT, last, comm));
  BOTH(Alltoall_c(in, n, MPI_INT, out, n, MPI_INT, comm), Alltoall(in, 37, MPI_INT, expected, 37, MPI_INT, comm));
  for (int i = 0; i < size; ++i) few[i] = 20 + (i + rank) % 3, counts[i] = few[i], at[i] = 23 * i, places[i] = at[i];
  BOTH(Alltoallv_c(in, counts, places, MPI_INT, out, counts, places, MPI_INT, comm), Alltoallv(in, few, at, MPI_INT, expected, few, at, MPI_INT, comm));
#undef BOTH
}
#endif

static void on(const char* called, MPI_Comm which, int most) {
  const MPI_Datatype whole[] = {MPI_SIGNED_CHAR, MPI_UNSIGNED_CHAR, MPI_SHORT, MPI_UNSIGNED_SHORT, MPI_INT, MPI_UNSIGNED, MPI_LONG,
                                MPI_UNSIGNED_LONG, MPI_LONG_LONG, MPI_INT8_T, MPI_UINT64_T, MPI_AINT};
  const MPI_Datatype floats[] = {MPI_FLOAT, MPI_DOUBLE};
  const MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_BAND, MPI_BOR, MPI_BXOR};
  const int counts[] = {1, 3, 130, 5003, 70001};
  comm = which;
  name = called;
  PMPI_Comm_rank(comm, &rank);
  PMPI_Comm_size(comm, &size);
  for (int c = 0; c < 5 && counts[c] <= most; ++c) {
    for (unsigned t = 0; t < sizeof whole / sizeof *whole; ++t) {
      if (c > 1 && t != 4 && t != (unsigned)c) continue;
      for (int o = 0; o < 7; ++o) reductions(whole[t], ops[o], counts[c]);
    }
    for (int t = 0; t < 2; ++t) {
      for (int o = 0; o < 4; ++o) reductions(floats[t], ops[o], counts[c]);
    }
    reductions(MPI_BYTE, MPI_BXOR, counts[c]);
    reductions(MPI_C_FLOAT_COMPLEX, MPI_SUM, counts[c]);
    MPI_Datatype strided, swapped, pair;
    const int lengths[] = {1, 1}, backward[] = {1, 0};
    PMPI_Type_vector(2, 1, 3, MPI_INT, &strided);
    PMPI_Type_indexed(2, lengths, backward, MPI_INT, &swapped);  // its size equals its extent, but its order is not
                                                                 // memory's
    PMPI_Type_contiguous(2, MPI_INT, &pair);
    PMPI_Type_commit(&strided), PMPI_Type_commit(&swapped), PMPI_Type_commit(&pair);
    moves(MPI_CHAR, counts[c], MPI_CHAR, counts[c]);
    moves(MPI_DOUBLE, counts[c], MPI_DOUBLE, counts[c]);
    padded = LDBL_MANT_DIG == 64 && sizeof(long double) == 16;
    moves(MPI_LONG_DOUBLE, counts[c], MPI_LONG_DOUBLE, counts[c]);
    padded = 0;
    const int pairs = counts[c] % 1000;  // MPICH 4.0.2's own Scatter truncates more of them
    moves(MPI_DOUBLE_INT, pairs, MPI_DOUBLE_INT, pairs);
    moves(MPI_INT, 2 * counts[c], strided, counts[c]);
#ifndef I_MPI_VERSION  // its own Allgather (2021.18) treats such a type as plain memory
    moves(swapped, counts[c], MPI_INT, 2 * counts[c]);
#endif
    moves(strided, counts[c], swapped, counts[c]);
    moves(pair, counts[c], pair, counts[c]);
    PMPI_Type_free(&strided), PMPI_Type_free(&swapped), PMPI_Type_free(&pair);
    MPI_Barrier(comm);
  }
  left();
#if MPI_VERSION >= 4
  long_counts();
#endif
}

int main(int argc, char** argv) {
  const int most = argc > 1 ? atoi(argv[1]) : 5003;
  MPI_Init(&argc, &argv);
  char** all[] = {&in, &out, &expected};
  for (int i = 0; i < 3; ++i) *all[i] = malloc((size_t)MOST * 16);
  int world, self;
  MPI_Comm_rank(MPI_COMM_WORLD, &self);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  on("the world", MPI_COMM_WORLD, most);
  MPI_Comm other;
  MPI_Comm_split(MPI_COMM_WORLD, self % 2, -self, &other);
  on("every second rank, backward", other, 130);
  MPI_Comm_free(&other);
  MPI_Comm_dup(MPI_COMM_WORLD, &other);
  on("a duplicate", other, 3);
  MPI_Comm_free(&other);
  on("one rank", MPI_COMM_SELF, 3);
  if (world >= 2) {
    MPI_Comm half, inter;
    int got = 0, wanted = 0;
    MPI_Comm_split(MPI_COMM_WORLD, self < world / 2, self, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, self < world / 2 ? world / 2 : 0, 5, &inter);
    MPI_Allreduce(&self, &got, 1, MPI_INT, MPI_SUM, inter);
    PMPI_Allreduce(&self, &wanted, 1, MPI_INT, MPI_SUM, inter);
    MPI_Barrier(inter);
    ++calls, wrong += got != wanted;
    MPI_Comm_free(&inter), MPI_Comm_free(&half);
  }
  int sum[2] = {calls, wrong}, of_all[2] = {0, 0};
  PMPI_Reduce(sum, of_all, 2, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
  if (self == 0) printf("%d calls, %d wrong\n", of_all[0], of_all[1]);
  MPI_Finalize();
  return self == 0 && of_all[1] != 0;
}
