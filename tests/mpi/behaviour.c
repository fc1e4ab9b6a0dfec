// One thing that MPI promises, or that a program may do wrong, by the word that it is started with.
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int rank, size;

static void need(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "rank %d: %s\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, 3);
}

static int sum(MPI_Comm comm) {
  int one = 1, all = 0;
  MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, comm);
  return all;
}

// Rank 0 has begun to send, and waits in a collective for a rank that comes only when it has received all.
static void progress(void) {
  enum { BYTES = 64 << 20 };
  sum(MPI_COMM_WORLD);
  char* data = malloc(BYTES);
  MPI_Request request = MPI_REQUEST_NULL;
  memset(data, rank, BYTES);
  if (rank == 0) MPI_Isend(data, BYTES, MPI_CHAR, 1, 5, MPI_COMM_WORLD, &request);
  if (rank == 1) {
    usleep(300000);  // rank 0 waits for long already
    MPI_Recv(data, BYTES, MPI_CHAR, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    need(data[BYTES - 1] == 0, "another message");
  }
  need(sum(MPI_COMM_WORLD) == size, "another sum");
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  free(data);
}

// A message that the receiver only looks for when it waits in a collective already, and that nobody matches.
static void unexpected(void) {
  int number = rank, got = -1;
  MPI_Request request;
  sum(MPI_COMM_WORLD);
  MPI_Isend(&number, 1, MPI_INT, (rank + 1) % size, 9, MPI_COMM_WORLD, &request);
  need(sum(MPI_COMM_WORLD) == size, "another sum");
  MPI_Recv(&got, 1, MPI_INT, (rank + size - 1) % size, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  need(got == (rank + size - 1) % size, "another message");
}

static void* in_thread(void* at) {
  MPI_Comm comm = *(MPI_Comm*)at;
  for (int i = 0; i < 300; ++i) {
    double in[40], out[40];
    for (int k = 0; k < 40; ++k) in[k] = rank + i;
    MPI_Allreduce(in, out, 1 + i % 40, MPI_DOUBLE, MPI_SUM, comm);
    need(out[i % 40] == size * (size - 1) / 2 + size * i, "another sum in a thread");
  }
  MPI_Comm_free((MPI_Comm*)at);
  return NULL;
}

// A communicator per thread, all at once, the first call on each among them.
static void threads(void) {
  MPI_Comm comms[3];
  pthread_t ids[3];
  for (int i = 0; i < 3; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
  for (int i = 0; i < 3; ++i) pthread_create(&ids[i], NULL, in_thread, &comms[i]);
  for (int i = 0; i < 3; ++i) pthread_join(ids[i], NULL);
}

// Many communicators, whose handles come again for others.
static void handles(void) {
  for (int i = 0; i < 30; ++i) {
    MPI_Comm comm;
    MPI_Comm_split(MPI_COMM_WORLD, i % 2 ? rank % 2 : 0, -rank, &comm);
    int members;
    MPI_Comm_size(comm, &members);
    need(sum(comm) == members, "another sum on a new communicator");
    MPI_Comm_free(&comm);
  }
}

// More kinds of calls than are kept.
static void kinds(void) {
  static int in[700], out[700];
  for (int round = 0; round < 2; ++round) {
    for (int count = 1; count <= 600; ++count) {
      in[count - 1] = 1;
      MPI_Allreduce(in, out, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
      need(out[count - 1] == size, "another sum");
    }
  }
}

// What stdout says of a call that must fail: nothing of a mistake may look like a result.
static void tell(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length, class = 0;
  MPI_Error_class(code, &class);
  MPI_Error_string(code, text, &length);
  printf("rank %d: %s\n", rank, class == MPI_SUCCESS ? "success" : class == MPI_ERR_OTHER ? "MPI_ERR_OTHER" : text);
  fflush(stdout);
}

static void mismatch(void) {
  int in[8] = {0}, out[8];
  sum(MPI_COMM_WORLD);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  tell(MPI_Allreduce(in, out, rank == 0 ? 4 : 5, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
  fflush(stdout);
  sleep(1);
  _exit(0);  // without MPI, whose state is unknown now
}

static void late(void) {
  sum(MPI_COMM_WORLD);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (rank == 1) sleep(4);
  else tell(MPI_Barrier(MPI_COMM_WORLD));
  _exit(0);
}

// One element more than 2^31 bytes hold.
static void large(void) {
  const int count = (1 << 29) + 1;
  int* data = malloc((size_t)count * sizeof *data);
  for (int i = 0; i < count; ++i) data[i] = i;
  MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  need(data[7] == 7 * size && data[count - 1] == (int)((unsigned)(count - 1) * (unsigned)size), "another sum");
  free(data);
}

static void killed(void) {
  sum(MPI_COMM_WORLD);
  if (rank == 1) raise(SIGKILL);
  MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char** argv) {
  int level;
  const struct { const char* name; void (*run)(void); } all[] = {
      {"progress", progress}, {"unexpected", unexpected}, {"threads", threads}, {"handles", handles}, {"kinds", kinds},
      {"mismatch", mismatch}, {"late", late}, {"killed", killed},
      {"large", large}};
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = 1; i < argc; ++i) {
    for (unsigned k = 0; k < sizeof all / sizeof *all; ++k) {
      if (strcmp(argv[i], all[k].name) != 0) continue;
      if (all[k].run == threads && level < MPI_THREAD_MULTIPLE) continue;
      all[k].run();
      if (rank == 0) printf("%s is done\n", argv[i]), fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
