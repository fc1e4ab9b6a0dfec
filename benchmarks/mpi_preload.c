// MPI_ and PMPI_ in turns in one process, for benchmarks/mpi_preload.py: under libblink_mpi.so the first is Blink, the
// second the library itself. A line per size: bytes, median microseconds of both, wrong elements.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

static int compare(const void* a, const void* b) {
  double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

// The library's function, before which libblink_mpi_fortran.so comes.
static void* in_library(const char* name) {
  Dl_info about;
  if (dladdr(dlsym(RTLD_DEFAULT, "PMPI_Get_library_version"), &about) == 0) abort();
  return dlsym(dlopen(about.dli_fname, RTLD_NOLOAD | RTLD_LAZY), name);
}
#define OWN(name) ({                                   \
  static __typeof__(&PMPI_##name) at;                  \
  if (at == NULL) at = (__typeof__(at))in_library("PMPI_" #name); \
  at;                                                  \
})

static double* in;
static double* out;

// Blocks of `count` elements in all, of which the first is the shortest and the last three times as long, by rank.
enum { MOST_RANKS = 64 };
static int lengths[MOST_RANKS], places[MOST_RANKS], turned[MOST_RANKS], turned_places[MOST_RANKS];

static void divide(int count) {
  for (int i = 0, at = 0; i < size; at += lengths[i++]) {
    lengths[i] = size == 1 ? count : (int)((long)count * (size - 1 + 2 * i) / (2L * size * (size - 1)));
    places[i] = at;
  }
  for (int i = 0, at = 0; i < size; at += turned[i++]) {
    turned[i] = lengths[(rank + i) % size];
    turned_places[i] = at;
  }
}

static void call_of_blocks(const char* what, int plain) {
  // From rank i to rank j goes block i + j, and so as much there as back.
  if (strcmp(what, "alltoallv") == 0)
    (plain ? OWN(Alltoallv) : MPI_Alltoallv)(in, turned, turned_places, MPI_DOUBLE, out, turned, turned_places, MPI_DOUBLE, MPI_COMM_WORLD);
  if (strcmp(what, "allgatherv") == 0)
    (plain ? OWN(Allgatherv) : MPI_Allgatherv)(in, lengths[rank], MPI_DOUBLE, out, lengths, places, MPI_DOUBLE, MPI_COMM_WORLD);
  if (strcmp(what, "reduce_scatterv") == 0)
    (plain ? OWN(Reduce_scatter) : MPI_Reduce_scatter)(in, out, lengths, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  if (strcmp(what, "gatherv") == 0)
    (plain ? OWN(Gatherv) : MPI_Gatherv)(in, lengths[rank], MPI_DOUBLE, out, lengths, places, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  if (strcmp(what, "scatterv") == 0)
    (plain ? OWN(Scatterv) : MPI_Scatterv)(in, lengths, places, MPI_DOUBLE, out, lengths[rank], MPI_DOUBLE, 0, MPI_COMM_WORLD);
}

static void call(const char* what, int plain, int count) {
  if (strcmp(what, "allreduce") == 0) (plain ? OWN(Allreduce) : MPI_Allreduce)(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  if (strcmp(what, "bcast") == 0) (plain ? OWN(Bcast) : MPI_Bcast)(out, count, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  if (strcmp(what, "reduce") == 0) (plain ? OWN(Reduce) : MPI_Reduce)(in, out, count, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (strcmp(what, "allgather") == 0)
    (plain ? OWN(Allgather) : MPI_Allgather)(in, count / size, MPI_DOUBLE, out, count / size, MPI_DOUBLE, MPI_COMM_WORLD);
  if (strcmp(what, "reduce_scatter") == 0)
    (plain ? OWN(Reduce_scatter_block) : MPI_Reduce_scatter_block)(in, out, count / size, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  if (strcmp(what, "alltoall") == 0)
    (plain ? OWN(Alltoall) : MPI_Alltoall)(in, count / size, MPI_DOUBLE, out, count / size, MPI_DOUBLE, MPI_COMM_WORLD);
  if (strcmp(what, "gather") == 0)
    (plain ? OWN(Gather) : MPI_Gather)(in, count / size, MPI_DOUBLE, out, count / size, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  if (strcmp(what, "scatter") == 0)
    (plain ? OWN(Scatter) : MPI_Scatter)(in, count / size, MPI_DOUBLE, out, count / size, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  call_of_blocks(what, plain);
  if (strcmp(what, "barrier") == 0) (plain ? OWN(Barrier) : MPI_Barrier)(MPI_COMM_WORLD);
}

int main(int argc, char** argv) {
  enum { ROUNDS = 15 };
  const char* what = argc > 1 ? argv[1] : "allreduce";
  const long least = argc > 2 ? atol(argv[2]) : 8, most = argc > 3 ? atol(argv[3]) : 1 << 20;
  const int factor = argc > 4 ? atoi(argv[4]) : 4;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  in = malloc((size_t)most + 64);
  out = malloc((size_t)most + 64);
  for (long bytes = least; bytes <= most; bytes *= factor) {
    const int count = (int)(bytes / 8), again = bytes < 65536 ? 200 : bytes < (1 << 20) ? 20 : bytes < (16 << 20) ? 4 : 1;
    static double seconds[2][ROUNDS];
    divide(count);
    for (int i = 0; i < count; ++i) in[i] = i % 7 + rank, out[i] = 0;
    for (int round = -1; round < ROUNDS; ++round) {
      for (int plain = 0; plain < 2; ++plain) {
        PMPI_Barrier(MPI_COMM_WORLD);
        call("barrier", plain, 0);
        double began = MPI_Wtime();
        for (int i = 0; i < again; ++i) call(what, plain, count);
        double own = (MPI_Wtime() - began) / again, slowest;
        PMPI_Reduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (round >= 0) seconds[plain][round] = slowest;
      }
    }
    long wrong = 0;
    if (strcmp(what, "allreduce") == 0) {
      memset(out, 0, (size_t)bytes);
      call(what, 0, count);
      for (int i = 0; i < count; ++i) wrong += out[i] != (i % 7) * size + size * (size - 1) / 2;
    }
    for (int plain = 0; plain < 2; ++plain) qsort(seconds[plain], ROUNDS, sizeof(double), compare);
    if (rank == 0) {
      printf("%ld %.3f %.3f %ld\n", bytes, seconds[0][ROUNDS / 2] * 1e6, seconds[1][ROUNDS / 2] * 1e6, wrong);
      fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
