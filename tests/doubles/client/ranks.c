// One rank of a program that uses NCCL's interface, in situations that need a certain moment: many calls of one size, a
// killed peer, a peer that does not call, an abort while the trees are planned. It does not know Blink. Prints one line
// of JSON; exit code 0: no error. Built as a program, and as a library that is opened as Python opens torch.
//
//   ranks SCENE RANKS RANK ID_FILE ODD CALLS COUNT     ODD: the rank that is killed, does not call, or leaves first
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nccl_client/world.h"

static int ranks, rank, odd, calls;
static size_t count, free_before;  // free_before: bytes of the GPU before the communicator existed
static ncclComm_t comm;
static cudaStream_t stream;
static CUdeviceptr in, out;
static float* values;

__attribute__((visibility("default"))) int scene_main(int words, char** word);

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int end(const char* what, int code, double seconds) {
  printf("{\"rank\": %d, \"what\": \"%s\", \"code\": %d, \"seconds\": %.3f}\n", rank, what, code, seconds);
  fflush(stdout);
  return 0;
}

#define MUST(call)                                \
  do {                                            \
    const int must_ = (int)(call);                \
    if (must_) {                                  \
      end(#call, must_, 0);                       \
      exit(1);                                    \
    }                                             \
  } while (0)

// Rank r contributes i % 7 + r, so the sum is ranks · (i % 7) + 0 + … + (ranks − 1): exact in float32.
static void fill(void) {
  for (size_t i = 0; i < count; ++i) values[i] = (float)(i % 7 + (size_t)rank);
  MUST(cuda.cuMemcpyHtoDAsync_v2(in, values, count * sizeof *values, stream));
  MUST(cuda.cuStreamSynchronize(stream));
}

static ncclResult_t all_reduce(void) {
  MUST(cuda.cuMemsetD8Async(out, 0xee, count * sizeof *values, stream));
  return ncclAllReduce((const void*)in, (void*)out, count, ncclFloat32, ncclSum, comm, stream);
}

static void look(void) {
  MUST(cuda.cuMemcpyDtoHAsync_v2(values, out, count * sizeof *values, stream));
  MUST(cuda.cuStreamSynchronize(stream));
  const int others = ranks * (ranks - 1) / 2;
  for (size_t i = 0; i < count; ++i) MUST(values[i] != (float)(ranks * (int)(i % 7) + others));
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t bytes, ncclWindow_t* window, int flags);

// Two calls before a buffer is registered, one with a window of it.
static int window(void) {
  void* handle;
  ncclWindow_t windows;
  MUST(all_reduce());
  look();
  MUST(ncclCommRegister(comm, (void*)in, count * sizeof *values, &handle));
  fill();
  MUST(all_reduce());
  look();
  ncclCommWindowRegister(comm, (void*)in, count * sizeof *values, &windows, 0);  // the double of NCCL has none
  fill();
  MUST(all_reduce());
  look();
  MUST(ncclCommDeregister(comm, handle));
  MUST(ncclCommDestroy(comm));
  return end("done", 0, 0);
}

// CLIENT_CONFIG: "cgaClusterSize minCTAs maxCTAs CTAPolicy", -1 for unset.
static ncclConfig_t configured(const char* text) {
  ncclConfig_t config = config_of(1);
  int* const fields[] = {&config.cgaClusterSize, &config.minCTAs, &config.maxCTAs, &config.more[1]};
  for (int i = 0; i < 4; ++i) {
    char* rest;
    const long value = strtol(text, &rest, 10);
    if (value >= 0) *fields[i] = (int)value;
    text = rest;
  }
  return config;
}

static ncclResult_t state_of(void) {
  ncclResult_t state = ncclSuccess;
  MUST(ncclCommGetAsyncError(comm, &state));
  return state;
}

// In step: before each call the ranks meet in a small one, so that none waits in it for another rank's previous call.
static int many_calls(bool in_step) {
  for (int call = 0; call < calls; ++call) {
    if (in_step) {
      MUST(ncclAllReduce((const void*)in, (void*)out, 1, ncclFloat32, ncclSum, comm, stream));
      MUST(cuda.cuStreamSynchronize(stream));
    }
    MUST(all_reduce());
    look();
  }
  MUST(ncclCommDestroy(comm));
  return end("done", 0, 0);
}

// A watchdog: it polls until there is an error, aborts and continues.
static int watch(double patience_s) {
  const double began = now_s();
  ncclResult_t state;
  while (!(state = state_of()) && now_s() - began < patience_s) usleep(5000);
  const double noticed = now_s() - began;
  MUST(ncclCommAbort(comm));
  MUST(cuda.cuStreamSynchronize(stream));
  return end("aborted", state, noticed);
}

static int lonely(void) {
  MUST(all_reduce());
  look();
  if (rank != odd) MUST(all_reduce());
  return watch(rank == odd ? 2.5 : 30);
}

// The call as a graph that is launched once.
static ncclResult_t replay(void) {
  CUgraph graph;
  CUgraphExec exec;
  MUST(cuda.cuStreamBeginCapture_v2(stream, 1));
  MUST(all_reduce());
  MUST(cuda.cuStreamEndCapture(stream, &graph));
  MUST(cuda.cuGraphInstantiateWithFlags(&exec, graph, 0));
  MUST(cuda.cuGraphLaunch(exec, stream));
  return ncclSuccess;
}

static int killed(bool graph) {
  MUST(all_reduce());
  look();
  if (rank == odd) raise(SIGKILL);
  usleep(100000);
  const ncclResult_t result = graph ? replay() : all_reduce();
  if (result != ncclSuccess) end("refused", result, 0);
  return watch(0.3);
}

// One rank has all its results, and aborts, as programs do at their end: this must not affect its peers. Before that it
// may have used a graph.
static int leaves(bool graph) {
  if (graph) {
    replay();
    look();
  }
  MUST(all_reduce());
  look();
  if (rank != odd) usleep(500000);
  const ncclResult_t state = state_of();
  MUST(ncclCommAbort(comm));
  return end("left", state, 0);
}

static size_t free_bytes(void) {
  size_t bytes, total;
  MUST(cuda.cuMemGetInfo_v2(&bytes, &total));
  return bytes;
}

// A communicator, and two more, one after the other: each reuses the resources of the previous one. Prints the GPU
// memory that each of them occupies.
static int followed(struct World* world) {
  for (int number = 0;; ++number) {
    MUST(all_reduce());
    look();
    end(number ? "another" : "first", 0, (double)(free_before - free_bytes()));
    if (rank == odd) usleep(200000);
    MUST(ncclCommDestroy(comm));
    if (number == 2) return 0;
    MUST(ncclCommInitRank(&comm, ranks, next_id(world), rank));
  }
}

// A nonblocking communicator: NCCL has created it while Blink is still planning.
static int impatient(const ncclUniqueId id) {
  ncclConfig_t config = config_of(0);
  ncclResult_t result = ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
  MUST(result != ncclInProgress && result != ncclSuccess);
  const double began = now_s();
  ncclResult_t state = ncclInProgress;
  while (now_s() - began < 1 && state == ncclInProgress) {
    if (rank == odd && now_s() - began > 0.3) raise(SIGKILL);
    if (comm) state = state_of();
    usleep(5000);
  }
  const double abort_began = now_s();
  MUST(ncclCommAbort(comm));
  return end("aborted", state, now_s() - abort_began);
}

int scene_main(int words, char** word) {
  CUcontext context;
  int devices;
  if (words != 8) return 2;
  const char* const scene = word[1];
  ranks = atoi(word[2]);
  rank = atoi(word[3]);
  odd = atoi(word[5]);
  calls = atoi(word[6]);
  count = (size_t)atol(word[7]);
  open_cuda();
  MUST(cuda.cuInit(0));
  MUST(cuda.cuDeviceGetCount(&devices));
  MUST(cuda.cuDevicePrimaryCtxRetain(&context, rank % devices));
  MUST(cuda.cuCtxSetCurrent(context));
  MUST(cuda.cuStreamCreate(&stream, 1));
  MUST(cuda.cuMemAlloc_v2(&in, count * sizeof *values));
  MUST(cuda.cuMemAlloc_v2(&out, count * sizeof *values));
  values = malloc(count * sizeof *values);
  fill();
  free_before = free_bytes();
  const struct Options options = {.id = word[4]};
  struct World world = {.options = &options, .what = scene, .local = {{.rank = rank}}};
  const ncclUniqueId id = next_id(&world);
  if (!strcmp(scene, "impatient")) return impatient(id);
  ncclConfig_t config = configured(getenv("CLIENT_CONFIG") ? getenv("CLIENT_CONFIG") : "-1 -1 -1 -1");
  MUST(ncclCommInitRankConfig(&comm, ranks, id, rank, &config));
  if (!strcmp(scene, "window")) return window();
  if (!strcmp(scene, "many_calls")) return many_calls(false);
  if (!strcmp(scene, "calls_in_step")) return many_calls(true);
  if (!strcmp(scene, "lonely")) return lonely();
  if (!strcmp(scene, "killed")) return killed(false);
  if (!strcmp(scene, "killed_before_replay")) return killed(true);
  if (!strcmp(scene, "leaves")) return leaves(false);
  if (!strcmp(scene, "leaves_after_graph")) return leaves(true);
  if (!strcmp(scene, "followed")) return followed(&world);
  return 2;
}

int main(int words, char** word) { return scene_main(words, word); }
