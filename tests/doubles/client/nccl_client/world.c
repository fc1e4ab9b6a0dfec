#include "world.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct Cuda cuda;

void open_cuda(void) {
  const char* path = getenv("BLINK_CUDA_LIB");
  void* library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "nccl_client: no CUDA driver: %s\n", dlerror());
    exit(2);
  }
#define CUDA_OPEN(name, arguments)                               \
  *(void**)&cuda.name = dlsym(library, #name);                   \
  if (!cuda.name) {                                              \
    fprintf(stderr, "nccl_client: the driver lacks %s\n", #name); \
    exit(2);                                                     \
  }
  CUDA_CALLS(CUDA_OPEN)
#undef CUDA_OPEN
}

static void say(const struct World* world, int rank, const char* text) {
  printf("{\"case\": \"%s\", \"rank\": %d, \"ok\": false, \"what\": \"%s\"}\n", world->what, rank, text);
  fflush(stdout);
}

void wrong(struct World* world, int rank, const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (++world->failures <= 5) say(world, rank, text);
}

static _Noreturn void give_up(struct World* world, const char* call, int result, const char* text) {
  char line[384];
  snprintf(line, sizeof line, "%.200s gives %d (%.120s)", call, result, text);
  for (char* c = line; *c; ++c) {
    if (*c == '"' || *c == '\\') *c = '\'';
  }
  say(world, world->local[0].rank, line);
  _exit(1);
}

void nccl(struct World* world, ncclResult_t result, const char* call) {
  if (result != ncclSuccess) give_up(world, call, (int)result, ncclGetErrorString(result));
}

void cu(struct World* world, int result, const char* call) {
  if (result) give_up(world, call, result, "CUDA");
}

void use(struct World* world, const struct Local* local) { CU(cuda.cuCtxSetCurrent(local->context)); }

void synchronize(struct World* world) {
  FOR_LOCALS(local) {
    use(world, local);
    CU(cuda.cuStreamSynchronize(local->stream));
  }
}

void make_streams(struct World* world, cudaStream_t* out) {
  FOR_LOCALS(local) {
    use(world, local);
    CU(cuda.cuStreamCreate(&out[local->index], 1));
  }
}

void end_streams(struct World* world, cudaStream_t* streams) {
  FOR_LOCALS(local) {
    use(world, local);
    CU(cuda.cuStreamSynchronize(streams[local->index]));
    CU(cuda.cuStreamDestroy_v2(streams[local->index]));
  }
}

void follow(struct World* world, cudaStream_t* from, cudaStream_t* to) {
  FOR_LOCALS(local) {
    use(world, local);
    CU(cuda.cuEventRecord(local->event, from[local->index]));
    CU(cuda.cuStreamWaitEvent(to[local->index], local->event, 0));
  }
}

ncclUniqueId next_id(struct World* world) {
  char path[512], fresh[600];
  ncclUniqueId id;
  snprintf(path, sizeof path, "%s.%d", world->options->id, world->ids++);
  if (world->local[0].rank == 0) {
    NCCL(ncclGetUniqueId(&id));
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE* file = fopen(fresh, "wb");
    if (!file || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) || rename(fresh, path)) {
      give_up(world, "writing the unique id", 0, path);
    }
    return id;
  }
  for (;;) {
    FILE* file = fopen(path, "rb");
    if (file) {
      if (fread(&id, sizeof id, 1, file) != 1) give_up(world, "reading the unique id", 0, path);
      fclose(file);
      return id;
    }
    usleep(2000);
  }
}

void begin_calls(struct World* world) {
  if (world->locals > 1) NCCL(ncclGroupStart());
}

void end_calls(struct World* world) {
  if (world->locals > 1) NCCL(ncclGroupEnd());
}

ncclConfig_t config_of(int blocking) {
  ncclConfig_t config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.magic = NCCL_API_MAGIC;
  config.version = NCCL_VERSION_CODE;
  config.blocking = blocking;
  config.cgaClusterSize = config.minCTAs = config.maxCTAs = NCCL_CONFIG_UNDEF_INT;
  config.splitShare = config.trafficClass = NCCL_CONFIG_UNDEF_INT;
  for (int i = 0; i < 15; ++i) config.more[i] = NCCL_CONFIG_UNDEF_INT;
  return config;
}

ncclResult_t settled(ncclComm_t comm) {
  for (;;) {
    ncclResult_t state;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) return asked;
    if (state != ncclInProgress) return state;
    usleep(1000);
  }
}

void make_comms(struct World* world, ncclComm_t* out, ncclConfig_t* config) {
  const ncclUniqueId id = next_id(world);
  const bool waits = config && config->blocking == 0;
  if (world->locals > 1) NCCL(ncclGroupStart());
  FOR_LOCALS(local) {
    use(world, local);
    ncclComm_t* comm = &out[local->index];
    const ncclResult_t result = config ? ncclCommInitRankConfig(comm, world->ranks, id, local->rank, config)
                                       : ncclCommInitRank(comm, world->ranks, id, local->rank);
    if (!(waits && result == ncclInProgress)) NCCL(result);
  }
  if (world->locals > 1) {
    const ncclResult_t result = ncclGroupEnd();
    if (!(waits && result == ncclInProgress)) NCCL(result);
  }
  for (int i = 0; waits && i < world->locals; ++i) NCCL(settled(out[i]));
}

void destroy_comms(struct World* world, ncclComm_t* comms) {
  FOR_LOCALS(local) {
    use(world, local);
    if (comms[local->index]) NCCL(ncclCommDestroy(comms[local->index]));
  }
}

void set_up(struct World* world) {
  int devices;
  world->what = "set up";
  CU(cuda.cuInit(0));
  CU(cuda.cuDeviceGetCount(&devices));
  FOR_LOCALS(local) {
    local->device = local->rank % devices;
    CU(cuda.cuDevicePrimaryCtxRetain(&local->context, local->device));
    use(world, local);
    CU(cuda.cuEventCreate(&local->event, 2));
    CU(cuda.cuMemAlloc_v2(&local->send, kBufferBytes));
    CU(cuda.cuMemAlloc_v2(&local->recv, kBufferBytes));
  }
  make_streams(world, world->own);
  ncclComm_t comms[kMostRanks];
  if (!strcmp(world->options->mode, "all")) {
    int list[kMostRanks];
    for (int i = 0; i < world->locals; ++i) list[i] = world->local[i].device;
    NCCL(ncclCommInitAll(comms, world->locals, list));
  } else {
    make_comms(world, comms, NULL);
  }
  FOR_LOCALS(local) {
    local->stream = world->own[local->index];
    local->comm = comms[local->index];
  }
}

void tear_down(struct World* world) {
  world->what = "tear down";
  synchronize(world);
  FOR_LOCALS(local) {
    use(world, local);
    NCCL(ncclCommDestroy(local->comm));
    CU(cuda.cuMemFree_v2(local->send));
    CU(cuda.cuMemFree_v2(local->recv));
    CU(cuda.cuEventDestroy_v2(local->event));
  }
  end_streams(world, world->own);
}
