// Modules and kernels. A kernel is a function `void name(const blink::Call*, uint32_t block)` of a shared object for
// this CPU, which replaces a cubin; each block of a launch is one thread.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <elf.h>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "blink/call.h"
#include "devices.h"
#include "entry.h"
#include "handles.h"
#include "streams.h"
#include "threads.h"

using namespace cuda_double;

typedef void (*Kernel)(const blink::Call*, std::uint32_t);

struct CUfunc_st {
  Kernel kernel = nullptr;
  int device = 0;
  std::vector<unsigned> slow_us;  // by program
};

struct CUmod_st {
  void* library = nullptr;
  int file = -1;
  int device = 0;
  std::vector<CUfunction> functions;
  std::set<std::string> loaded;  // the names of those with code on the GPU
  std::mutex mutex;
};

namespace {

constexpr unsigned kMostThreads = 1024;
constexpr int kUnitsPerMultiprocessor = 32;

// Size of the ELF file in memory: its section headers come last, or a segment does.
std::size_t elf_bytes(const void* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != EM_X86_64 || header.e_type != ET_DYN) return 0;
  std::size_t end = header.e_shoff + std::size_t{header.e_shnum} * header.e_shentsize;
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, static_cast<const char*>(image) + header.e_phoff + i * header.e_phentsize, sizeof segment);
    if (segment.p_offset + segment.p_filesz > end) end = segment.p_offset + segment.p_filesz;
  }
  return end;
}

// dlopen() treats a known name as the same library: an unused descriptor number makes a new name.
int unused_file(int file) {
  static std::atomic<int> next{2000};
  const int unused = fcntl(file, F_DUPFD_CLOEXEC, next.fetch_add(1));
  close(file);
  return unused;
}

// A cubin for sm_90 runs on 9.0 and later 9.x only. The compiler double records the requested architectures:
// "sm_80,sm_90".
bool runs_here(void* library, int arch) {
  const char* made_for = static_cast<const char*>(dlsym(library, "test_double_arch"));
  if (!made_for) return true;
  while (const char* const at = std::strstr(made_for, "sm_")) {
    const int wanted = std::atoi(at + 3);
    if (wanted / 10 == arch / 10 && wanted % 10 <= arch % 10) return true;
    made_for = at + 3;
  }
  return false;
}

// The resources shared by the blocks of all kernels on one device. A block without room waits until another one ends.
struct Room {
  std::mutex mutex;
  std::condition_variable freed;
  int units = 0, kernels = 0;  // units: free ones; kernels: running ones
};

Room& room(int device) {
  static std::vector<Room>& rooms = *[] {
    auto* made = new std::vector<Room>(machine().devices.size());
    for (Room& one : *made) one.units = machine().multiprocessors * kUnitsPerMultiprocessor;
    return made;
  }();
  return rooms[static_cast<std::size_t>(device)];
}

// BLINK_DOUBLE_SLOW_KERNEL: a part of program names (allreduce_optimal_ll), and their additional time.
unsigned slow_us(const std::string& name) {
  const char* const set = std::getenv("BLINK_DOUBLE_SLOW_KERNEL");
  const char* const colon = set ? std::strchr(set, ':') : nullptr;
  if (!colon || name.find(std::string(set, colon)) == std::string::npos) return 0;
  return static_cast<unsigned>(std::strtoul(colon + 1, nullptr, 10));
}

// Additional times by the index of a kernel's program: "allreduce_optimal::run, reduce_root0_optimal::run".
std::vector<unsigned> slow_programs(const std::string& kernel, const char* programs) {
  std::vector<unsigned> found;
  const std::string protocol = kernel.substr(kernel.find_last_of('_') + 1);
  std::istringstream list(programs ? programs : "");
  for (std::string name; std::getline(list, name, ',');) {
    found.push_back(slow_us(name.substr(0, name.find("::")) + "_" + protocol));
  }
  return found;
}

struct Launch {
  Kernel kernel;
  int device;
  std::uint32_t blocks;
  int units;  // of each block
  unsigned slow_us;
  blink::Call call;

  void run() const {
    std::mutex mutex;
    std::condition_variable ended;
    std::uint32_t left = blocks;
    Room& shared = room(device);
    begin(shared);
    std::mt19937_64 random(seed() + blocks);
    for (std::uint32_t block = 0; block < blocks; ++block) {
      {
        std::unique_lock<std::mutex> lock(shared.mutex);
        shared.freed.wait(lock, [&] { return shared.units >= units; });
        shared.units -= units;
      }
      const std::uint64_t own_seed = random();
      run_in_thread([&, block, own_seed] {
        std::mt19937_64 own(own_seed);
        dawdle(own);
        kernel(&call, block);
        {
          std::lock_guard<std::mutex> lock(shared.mutex);
          shared.units += units;
          shared.freed.notify_all();
        }
        std::lock_guard<std::mutex> lock(mutex);
        --left;
        ended.notify_all();
      });
    }
    std::unique_lock<std::mutex> lock(mutex);
    ended.wait(lock, [&] { return left == 0; });
    if (slow_us != 0) usleep(slow_us);
    std::lock_guard<std::mutex> done(shared.mutex);
    --shared.kernels;
    shared.freed.notify_all();
  }

  static void begin(Room& shared) {
    std::unique_lock<std::mutex> lock(shared.mutex);
    if (machine().serial_kernels) shared.freed.wait(lock, [&] { return shared.kernels == 0; });
    ++shared.kernels;
  }
};

// A kernel's code is loaded onto the GPU at the first use of its function (CUDA_MODULE_LOADING=LAZY, the default since
// CUDA 12.2), and CUDA may wait for all running work. Running kernels may wait for the program's next action, which
// would be a deadlock. So this is a finding, even if it ends well this time.
void load_code(int device, const char* name) {
  const char* const mode = std::getenv("CUDA_MODULE_LOADING");
  if (mode && !std::strcmp(mode, "EAGER")) return;
  Room& shared = room(device);
  std::lock_guard<std::mutex> lock(shared.mutex);
  if (shared.kernels == 0) return;
  std::fprintf(stderr, "cuda double: %s is loaded while %d kernels run on device %d\n", name, shared.kernels, device);
  std::abort();
}

}  // namespace

static CUresult load(CUmodule* out, const void* image) {
  if (!out || !image) return kInvalidValue;
  if (std::memcmp(image, ELFMAG, SELFMAG)) return kInvalidImage;
  const std::size_t bytes = elf_bytes(image);
  if (bytes == 0) return kInvalidImage;
  const int first = memfd_create("test-double-module", MFD_CLOEXEC);
  if (first < 0 || write(first, image, bytes) != static_cast<ssize_t>(bytes)) return kOutOfMemory;
  auto module = std::make_shared<CUmod_st>();
  module->file = unused_file(first);
  module->device = current_device();
  const std::string path = "/proc/self/fd/" + std::to_string(module->file);
  module->library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module->library) {
    std::fprintf(stderr, "cuda double: the image cannot be loaded: %s\n", dlerror());
    close(module->file);
    return kInvalidImage;
  }
  if (!runs_here(module->library, machine().arch)) {
    dlclose(module->library);
    close(module->file);
    return kNoBinaryForGpu;
  }
  *out = handles<CUmod_st>().add(module);
  return kSuccess;
}

CU_API cuModuleLoadData(CUmodule* out, const void* image) {
  CU_ENTER(kDriver | kContext | kNoCapture);
  return load(out, image);
}

CU_API cuModuleUnload(CUmodule handle) {
  CU_ENTER(kDriver | kContext | kNoCapture);
  const auto module = handles<CUmod_st>().remove(handle);
  if (!module) return kInvalidHandle;
  wait_for_device(module->device);
  for (CUfunction function : module->functions) handles<CUfunc_st>().remove(function);
  dlclose(module->library);
  close(module->file);
  return kSuccess;
}

CU_API cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  CU_ENTER(kDriver | kContext);
  if (!out || !name) return kInvalidValue;
  const auto module = handles<CUmod_st>().find(handle);
  if (!module) return kInvalidHandle;
  void* const symbol = dlsym(module->library, name);
  if (!symbol) return kNotFound;
  auto function = std::make_shared<CUfunc_st>();
  function->kernel = reinterpret_cast<Kernel>(symbol);
  function->device = module->device;
  function->slow_us = slow_programs(name, static_cast<const char*>(
                                              dlsym(module->library, (std::string(name) + "_programs").c_str())));
  std::lock_guard<std::mutex> lock(module->mutex);
  if (module->loaded.insert(name).second) load_code(module->device, name);
  *out = handles<CUfunc_st>().add(function);
  module->functions.push_back(*out);
  return kSuccess;
}

// A kernel of the double needs 32 registers per thread, and no memory of the GPU.
CU_API cuFuncGetAttribute(int* value, int attribute, CUfunction handle) {
  CU_ENTER(kDriver);
  constexpr int kRegisters = 4, kAttributes = 16;
  if (!value || attribute < 0 || attribute >= kAttributes) return kInvalidValue;
  if (!handles<CUfunc_st>().find(handle)) return kInvalidHandle;
  *value = attribute == kRegisters ? 32 : 0;
  return kSuccess;
}

// The only supported attribute is the memory-sync domain, on drivers and GPUs that have several.
static bool takes_attributes(const CUlaunchConfig& config) {
  constexpr int kMemorySyncDomain = 10, kRemote = 1;
  return std::all_of(config.attrs, config.attrs + config.numAttrs, [](const CUlaunchAttribute& one) {
    return one.id == kMemorySyncDomain && machine().memory_domains() > 1 && one.value.memSyncDomain >= 0 &&
           one.value.memSyncDomain <= kRemote;
  });
}

static CUresult launch_kernel(CUfunction handle, const CUlaunchConfig& config, void** parameters, void** extra) {
  const auto function = handles<CUfunc_st>().find(handle);
  const auto into = stream_of(config.hStream);
  if (!function || !into) return kInvalidHandle;
  if (config.gridDimX == 0 || config.gridDimY != 1 || config.gridDimZ != 1 || config.blockDimX == 0 ||
      config.blockDimX > kMostThreads || config.blockDimY != 1 || config.blockDimZ != 1 || extra || !parameters ||
      !parameters[0] || !takes_attributes(config)) {
    return kInvalidValue;
  }
  if (function->device != into->device || function->device != current_device()) return kInvalidHandle;
  Launch launch;
  launch.kernel = function->kernel;
  launch.device = function->device;
  launch.blocks = config.gridDimX;
  launch.units = kUnitsPerMultiprocessor / occupancy_of(static_cast<int>(config.blockDimX));
  std::memcpy(&launch.call, parameters[0], sizeof launch.call);
  const bool known = launch.call.program < function->slow_us.size();
  launch.slow_us = known ? function->slow_us[launch.call.program] : 0;
  return submit(config.hStream, [launch] { launch.run(); });
}

CU_API cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void** parameters,
                      void** extra) {
  CU_ENTER(kDriver | kContext);
  return launch_kernel(function, {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, nullptr, 0},
                       parameters, extra);
}

CU_API cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  CU_ENTER(kDriver | kContext);
  return config ? launch_kernel(function, *config, parameters, extra) : kInvalidValue;
}
