// Cases of MPI's guarantees and of programs' errors, selected by name on the command line.
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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

// Rank 0 has begun a send, and waits in a collective for a rank that joins it only after it has received all.
static void progress(void) {
  enum { BYTES = 64 << 20 };
  sum(MPI_COMM_WORLD);
  char* data = malloc(BYTES);
  MPI_Request request = MPI_REQUEST_NULL;
  memset(data, rank, BYTES);
  if (rank == 0) MPI_Isend(data, BYTES, MPI_CHAR, 1, 5, MPI_COMM_WORLD, &request);
  if (rank == 1) {
    usleep(300000);  // by then rank 0 has been waiting for long
    MPI_Recv(data, BYTES, MPI_CHAR, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    need(data[BYTES - 1] == 0, "wrong message");
  }
  need(sum(MPI_COMM_WORLD) == size, "wrong sum");
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  free(data);
}

// A message that arrives before its receive is posted, while the receiver waits in a collective.
static void unexpected(void) {
  int number = rank, got = -1;
  MPI_Request request;
  sum(MPI_COMM_WORLD);
  MPI_Isend(&number, 1, MPI_INT, (rank + 1) % size, 9, MPI_COMM_WORLD, &request);
  need(sum(MPI_COMM_WORLD) == size, "wrong sum");
  MPI_Recv(&got, 1, MPI_INT, (rank + size - 1) % size, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  need(got == (rank + size - 1) % size, "wrong message");
}

static void* in_thread(void* at) {
  MPI_Comm comm = *(MPI_Comm*)at;
  for (int i = 0; i < 300; ++i) {
    double in[40], out[40];
    for (int k = 0; k < 40; ++k) in[k] = rank + i;
    MPI_Allreduce(in, out, 1 + i % 40, MPI_DOUBLE, MPI_SUM, comm);
    need(out[i % 40] == size * (size - 1) / 2 + size * i, "wrong sum in a thread");
  }
  MPI_Comm_free((MPI_Comm*)at);
  return NULL;
}

// One communicator per thread, used concurrently, including the first call on each.
static void threads(void) {
  MPI_Comm comms[3];
  pthread_t ids[3];
  for (int i = 0; i < 3; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
  for (int i = 0; i < 3; ++i) pthread_create(&ids[i], NULL, in_thread, &comms[i]);
  for (int i = 0; i < 3; ++i) pthread_join(ids[i], NULL);
}

// Many communicators, whose handles are reused.
static void handles(void) {
  for (int i = 0; i < 30; ++i) {
    MPI_Comm comm;
    MPI_Comm_split(MPI_COMM_WORLD, i % 2 ? rank % 2 : 0, -rank, &comm);
    int members;
    MPI_Comm_size(comm, &members);
    need(sum(comm) == members, "wrong sum on a new communicator");
    MPI_Comm_free(&comm);
  }
}

// More kinds of calls than the cache holds.
static void kinds(void) {
  static int in[700], out[700];
  for (int round = 0; round < 2; ++round) {
    for (int count = 1; count <= 600; ++count) {
      in[count - 1] = 1;
      MPI_Allreduce(in, out, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
      need(out[count - 1] == size, "wrong sum");
    }
  }
}

// Many calls of all sizes from or to one rank, which changes, with pauses on either side.
static void one_way(void) {
  enum { MOST = 1 << 18 };
  static int in[8 * MOST], out[8 * MOST];
  int counts[64], places[64];
  for (int i = 0; i < 1200; ++i) {
    const int root = i / 300 % size, n = i % 100 == 99 ? MOST : 65 + i % 150;
    if (rank == root ? i % 97 == 0 : i % 89 == 0) usleep(300);
    for (int r = 0; r < size; ++r) counts[r] = (r + i) % 3 * n / 2, places[r] = r * n;
    for (int k = 0; k < n; ++k) in[k] = rank + i;
    if (i % 4 == 0) {
      MPI_Bcast(in, n, MPI_INT, root, MPI_COMM_WORLD);
      need(in[0] == root + i && in[n - 1] == root + i, "wrong broadcast of many");
    } else if (i % 4 == 1) {
      MPI_Reduce(in, out, n, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD);
      need(rank != root || out[n - 1] == size * i + size * (size - 1) / 2, "wrong reduction");
    } else if (i % 4 == 2) {
      for (int r = 0; r < size && rank == root; ++r) in[r * n] = r + i;
      MPI_Scatterv(in, counts, places, MPI_INT, out, counts[rank], MPI_INT, root, MPI_COMM_WORLD);
      need(counts[rank] == 0 || out[0] == rank + i, "wrong block scattered");
    } else {
      MPI_Gatherv(in, counts[rank], MPI_INT, out, counts, places, MPI_INT, root, MPI_COMM_WORLD);
      for (int r = 0; r < size && rank == root; ++r) {
        need(counts[r] == 0 || (out[r * n] == r + i && out[r * n + counts[r] - 1] == r + i), "wrong block gathered");
      }
    }
  }
}

// Prints the result of a call that must fail, so that a mistake cannot look like a result.
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
  _exit(0);  // without MPI, whose state is undefined now
}

// Rank 0's own block is shorter than its receive count.
static void own_block(void) {
  int in[8] = {0}, out[16];
  const int counts[64] = {4, 4}, places[64] = {0, 4};
  sum(MPI_COMM_WORLD);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int code = MPI_Gatherv(in, rank == 0 ? 3 : 4, MPI_INT, out, counts, places, MPI_INT, 0, MPI_COMM_WORLD);
  if (rank == 0 || code != MPI_SUCCESS) tell(code);
  if (code == MPI_SUCCESS) tell(MPI_Barrier(MPI_COMM_WORLD));  // the sender gets an error once rank 0 has ended
  sleep(1);
  _exit(0);
}

// Rank 1 passes a larger count for rank 0 than rank 0 has.
static void disagree(void) {
  static int in[400], out[800];
  const int counts[64] = {200 + rank, 300}, places[64] = {0, 400};
  sum(MPI_COMM_WORLD);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int code = MPI_Allgatherv(in, rank == 0 ? 200 : 300, MPI_INT, out, counts, places, MPI_INT, MPI_COMM_WORLD);
  if (rank == 1) tell(code);
  sleep(2);
  _exit(0);
}

// Each rank waits for the other, in a different collective.
static void crossed(void) {
  int in[100] = {0}, out[100] = {0};
  sum(MPI_COMM_WORLD);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (rank == 0) tell(MPI_Reduce(in, out, 100, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD));
  else tell(MPI_Bcast(in, 100, MPI_INT, 0, MPI_COMM_WORLD));
  sleep(1);
  _exit(0);
}

// The same for a call with a plan, which rank 1 must not leave to MPI on its own.
static void own_block_of_many(void) {
  static int in[4096], out[8192];
  const int counts[64] = {4000, 4096}, places[64] = {0, 4096};
  sum(MPI_COMM_WORLD);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const int kept = rank == 0 ? 4000 : 4095;
  if (rank == 1) tell(MPI_Allgatherv(in, kept, MPI_INT, out, counts, places, MPI_INT, MPI_COMM_WORLD));
  sleep(1);
  _exit(0);
}

static void late(void) {
  sum(MPI_COMM_WORLD);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (rank == 1) sleep(4);
  else tell(MPI_Barrier(MPI_COMM_WORLD));
  _exit(0);
}

// One element more than fits into 2^31 bytes.
static void large(void) {
  const int count = (1 << 29) + 1;
  int* data = malloc((size_t)count * sizeof *data);
  for (int i = 0; i < count; ++i) data[i] = i;
  MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  need(data[7] == 7 * size && data[count - 1] == (int)((unsigned)(count - 1) * (unsigned)size), "wrong sum");
  free(data);
  // Blocks of different sizes are Blink's at any length.
  const int lengths[2] = {1200000000, 1000000000}, places[2] = {0, 1200000000};
  char* both = malloc(2200000000u);
  memset(both + places[rank], 3 + rank, (size_t)lengths[rank]);
  MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_CHAR, both, lengths, places, MPI_CHAR, MPI_COMM_WORLD);
  for (size_t i = 0; i < 2200000000u; i += 4093) need(both[i] == (i < 1200000000u ? 3 : 4), "wrong block");
  need(both[2200000000u - 1] == 4, "wrong end");
  free(both);
}

static void killed(void) {
  sum(MPI_COMM_WORLD);
  if (rank == 1) raise(SIGKILL);
  MPI_Barrier(MPI_COMM_WORLD);
}

// Invalid roots: MPI's own error, without access to memory.
static void roots(void) {
  int in[64] = {0}, out[64];
  const int counts[64] = {1, 1}, places[64] = {0, 1}, wrong[2] = {-7, size};
  sum(MPI_COMM_WORLD);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  for (int i = 0; i < 2; ++i) {
    const int root = wrong[i];
    const int codes[] = {
        MPI_Bcast(in, 1, MPI_INT, root, MPI_COMM_WORLD),
        MPI_Reduce(in, out, 1, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD),
        MPI_Gather(in, 1, MPI_INT, out, 1, MPI_INT, root, MPI_COMM_WORLD),
        MPI_Scatter(in, 1, MPI_INT, out, 1, MPI_INT, root, MPI_COMM_WORLD),
        MPI_Gatherv(in, 1, MPI_INT, out, counts, places, MPI_INT, root, MPI_COMM_WORLD),
        MPI_Scatterv(in, counts, places, MPI_INT, out, 1, MPI_INT, root, MPI_COMM_WORLD),
    };
    for (unsigned k = 0; k < sizeof codes / sizeof *codes; ++k) {
      int class = MPI_SUCCESS;
      MPI_Error_class(codes[k], &class);
      need(class == MPI_ERR_ROOT, "an invalid root is accepted");
    }
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

// Blink's calls between nonblocking ones of the MPI library, which one rank has begun long before the other.
static void between(void) {
  for (int round = 0; round < 4; ++round) {
    int in = rank + round, sums[2] = {0}, word = rank == 0 ? round : -1, all[64];
    const int counts[64] = {1, 1}, places[64] = {0, 1};
    MPI_Request requests[2];
    if (rank == round % 2) usleep(20000);
    for (int i = 0; i < 2; ++i) MPI_Iallreduce(&in, &sums[i], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[i]);
    if (round < 2) {
      MPI_Bcast(&word, 1, MPI_INT, 0, MPI_COMM_WORLD);
      need(word == round, "wrong broadcast");
    } else {
      MPI_Gatherv(&in, 1, MPI_INT, all, counts, places, MPI_INT, 0, MPI_COMM_WORLD);
      need(rank != 0 || (all[0] == round && all[1] == 1 + round), "wrong block gathered");
    }
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    need(sums[0] == 1 + 2 * round && sums[1] == sums[0], "wrong sum");
  }
}

// More communicators than the limit on open files allows.
static void descriptors(void) {
  enum { MANY = 60 };
  MPI_Comm comms[MANY];
  struct rlimit before, few;
  getrlimit(RLIMIT_NOFILE, &before);
  few = before;
  few.rlim_cur = 80;
  setrlimit(RLIMIT_NOFILE, &few);
  for (int i = 0; i < MANY; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]), need(sum(comms[i]) == size, "wrong sum");
  FILE* file = fopen("/dev/null", "r");
  need(file != NULL, "the program has no files left");
  fclose(file);
  for (int i = 0; i < MANY; ++i) MPI_Comm_free(&comms[i]);
  setrlimit(RLIMIT_NOFILE, &before);
}

// Longer than one slice per rank on each host, with one element outside the slices; and shorter.
static void across(void) {
  enum { COUNT = (1 << 18) + 1, FEW = 5 };
  int *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out), few[FEW];
  for (int i = 0; i < COUNT; ++i) in[i] = rank * i % 1000, out[i] = -1;
  MPI_Allreduce(in, few, FEW, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(in, out, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, in, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < COUNT; ++i) {
    int all = 0;
    for (int r = 0; r < size; ++r) all += r * i % 1000;
    need(out[i] == all && in[i] == all && (i >= FEW || few[i] == all), "wrong sum");
  }
  free(in), free(out);
}

int main(int argc, char** argv) {
  int level;
  const struct { const char* name; void (*run)(void); } all[] = {
      {"progress", progress}, {"unexpected", unexpected}, {"threads", threads}, {"handles", handles},
      {"kinds", kinds}, {"mismatch", mismatch}, {"late", late}, {"one_way", one_way}, {"own_block", own_block},
      {"disagree", disagree}, {"crossed", crossed}, {"killed", killed}, {"large", large},
      {"descriptors", descriptors}, {"between", between}, {"roots", roots}, {"own_block_of_many", own_block_of_many},
      {"across", across}};
  const int unseen = argc > 1 && strcmp(argv[1], "unseen") == 0;  // the start of a program that finds MPI_Init by dlsym
  if (unseen) PMPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  else MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
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
