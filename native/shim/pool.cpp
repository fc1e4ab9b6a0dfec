#include "pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "deadline.h"

namespace blink::shim::pool {
namespace {

constexpr double kAtExit = 2;
// The driver cuts smaller allocations out of blocks of this size, and exports whole blocks to other processes.
constexpr std::size_t kBlock = 2 << 20;

struct Kept {
  std::uint64_t place;
  Arena arena;
  std::shared_ptr<SharedPage> page;

  bool free() const { return page == nullptr || page->all_done(); }
};

struct Pool {
  std::mutex mutex;
  std::vector<Kept> kept;
  std::vector<std::shared_ptr<SharedPage>> registered;
  std::map<std::pair<std::uint64_t, std::string>, CUmodule> modules;
};

void wait_at_exit();

Pool& all() {
  static Pool* const the = [] {
    static const pid_t owner = getpid();
    // A forked child owns no GPU memory.
    std::atexit([] {
      if (getpid() == owner) wait_at_exit();
    });
    return new Pool;  // communicators may end with the process
  }();
  return *the;
}

// Waits until no peer writes here any more, at most kAtExit seconds.
void wait_at_exit() {
  const Deadline deadline(kAtExit);
  const auto free = [](const Kept& one) { return one.free(); };
  std::unique_lock<std::mutex> lock(all().mutex);
  while (!deadline.passed() && !std::all_of(all().kept.begin(), all().kept.end(), free)) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    lock.lock();
  }
}

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

bool ok(const Driver& driver, CUresult result, const std::string& what, std::string* why) {
  if (result != kCudaSuccess) *why = describe(driver, result, what.c_str());
  return result == kCudaSuccess;
}

bool make(const Driver& driver, std::size_t bytes, Arena* arena, std::string* why) {
  arena->bytes = (bytes + kBlock - 1) / kBlock * kBlock;
  if (!ok(driver, driver.mem_alloc(&arena->segment, arena->bytes), "cuMemAlloc_v2 of the staging segment", why)) {
    return false;
  }
  // MAP_SHARED, so that after a fork this process still has the page that the GPU writes.
  void* const status = mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (status == MAP_FAILED) {
    *why = std::string("mmap: ") + std::strerror(errno);
  } else if (!ok(driver, driver.host_register(status, page_bytes(), kHostRegisterPortable | kHostRegisterDeviceMap),
                 "cuMemHostRegister of the status page", why)) {
    munmap(status, page_bytes());
  } else if (ok(driver, driver.host_device_pointer(&arena->status_device, status, 0), "cuMemHostGetDevicePointer",
                why)) {
    arena->status = static_cast<Status*>(status);
    return true;
  } else {
    driver.host_unregister(status);
    munmap(status, page_bytes());
  }
  driver.mem_free(arena->segment);  // not used yet
  *arena = {};
  return false;
}

}  // namespace

std::uint64_t place_of(const Driver& driver, CUcontext context, int device) {
  unsigned long long id = 0;
  const bool known = driver.context_id != nullptr && driver.context_id(context, &id) == kCudaSuccess;
  return known ? id : static_cast<std::uint64_t>(device);
}

bool take(const Driver& driver, std::uint64_t place, std::size_t bytes, Arena* arena, std::string* why) {
  {
    const std::lock_guard<std::mutex> lock(all().mutex);
    auto best = all().kept.end();
    for (auto one = all().kept.begin(); one != all().kept.end(); ++one) {
      if (one->place != place || one->arena.bytes < bytes || !one->free()) continue;
      if (best == all().kept.end() || one->arena.bytes < best->arena.bytes) best = one;
    }
    if (best != all().kept.end()) {
      *arena = best->arena;
      all().kept.erase(best);
      std::memset(static_cast<void*>(arena->status), 0, page_bytes());
      return true;
    }
  }
  return make(driver, bytes, arena, why);
}

void give(std::uint64_t place, const Arena& arena, std::shared_ptr<SharedPage> page) {
  const std::lock_guard<std::mutex> lock(all().mutex);
  if (page != nullptr) all().registered.push_back(page);
  if (arena.segment != 0) all().kept.push_back({place, arena, std::move(page)});
}

void unregister_pages(const Driver& driver) {
  std::vector<std::shared_ptr<SharedPage>> pages;
  {
    const std::lock_guard<std::mutex> lock(all().mutex);
    pages.swap(all().registered);
  }
  for (const auto& page : pages) {  // pages that were never registered are refused
    driver.host_unregister(page->memory());
    if (page->staging_bytes() != 0) driver.host_unregister(page->staging());
  }
}

bool module(const Driver& driver, std::uint64_t place, const std::string& file, const Reader& read, CUmodule* module,
            std::string* why) {
  const std::lock_guard<std::mutex> lock(all().mutex);
  const auto known = all().modules.find({place, file});
  if (known != all().modules.end()) {
    *module = known->second;
    return true;
  }
  std::string code;
  if (!read(&code)) return false;
  if (!ok(driver, driver.module_load(module, code.data()), "cuModuleLoadData of " + file, why)) return false;
  all().modules[{place, file}] = *module;
  return true;
}

}  // namespace blink::shim::pool
