#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "devices.h"
#include "entry.h"
#include "streams.h"

namespace cuda_double {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::uintptr_t, Range> by_base;
  std::map<int, std::size_t> allocated;
};

Table& table() {
  static Table& only = *new Table;
  return only;
}

Range* holder(std::uintptr_t address) {
  auto at = table().by_base.upper_bound(address);
  if (at == table().by_base.begin()) return nullptr;
  --at;
  Range& range = at->second;
  return address < range.base + range.bytes ? &range : nullptr;
}

constexpr std::size_t kPage = 4096, kAlignment = 256;
constexpr unsigned char kFresh = 0xa5, kSlack = 0xc3;  // unwritten memory; memory that must not be written

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// The offset in its file at which an allocation of that size begins.
std::size_t offset_in_file(std::size_t bytes) { return (whole_pages(bytes) - bytes) / kAlignment * kAlignment; }

// The bytes between the end of an allocation and the guard page. A change there is a write past the end.
std::size_t slack(std::size_t bytes) { return whole_pages(bytes) - offset_in_file(bytes) - bytes; }

void check_slack(const Range& range) {
  const auto* after = reinterpret_cast<const unsigned char*>(range.base + range.bytes);
  for (std::size_t i = 0; i < slack(range.bytes); ++i) {
    if (after[i] != kSlack) {
      std::fprintf(stderr, "cuda double: byte %zu past the end of an allocation of %zu bytes was written\n", i,
                   range.bytes);
      std::abort();
    }
  }
}

// A lock shows other processes' use, and is released when the holder ends.
struct flock whole_file(int kind) {
  struct flock lock {};
  lock.l_type = static_cast<short>(kind);
  lock.l_whence = SEEK_SET;
  return lock;
}

void check_closed(const Range& range) {
  struct flock lock = whole_file(F_WRLCK);
  if (fcntl(range.file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK) return;
  std::fprintf(stderr, "cuda double: an allocation of %zu bytes was freed while process %d has it open\n", range.bytes,
               static_cast<int>(lock.l_pid));
  std::abort();
}

}  // namespace

void add_range(const Range& range) {
  std::lock_guard<std::mutex> lock(table().mutex);
  if (range.kind == Kind::device) table().allocated[range.device] += range.bytes;
  table().by_base[range.base] = range;
}

bool remove_range(std::uintptr_t base, Kind kind, Range* removed) {
  std::lock_guard<std::mutex> lock(table().mutex);
  const auto at = table().by_base.find(base);
  if (at == table().by_base.end() || at->second.kind != kind) return false;
  *removed = at->second;
  if (kind == Kind::device) table().allocated[removed->device] -= removed->bytes;
  table().by_base.erase(at);
  return true;
}

bool find_range(std::uintptr_t address, Range* found) {
  std::lock_guard<std::mutex> lock(table().mutex);
  const Range* range = holder(address);
  if (range) *found = *range;
  return range;
}

bool find_opened(std::uint64_t inode, Range* found) {
  std::lock_guard<std::mutex> lock(table().mutex);
  for (const auto& entry : table().by_base) {
    if (entry.second.kind == Kind::ipc && entry.second.inode == inode) return *found = entry.second, true;
  }
  return false;
}

int change_opened(std::uintptr_t base, int by) {
  std::lock_guard<std::mutex> lock(table().mutex);
  return table().by_base[base].opened += by;
}

std::size_t device_bytes(int device) {
  std::lock_guard<std::mutex> lock(table().mutex);
  return table().allocated[device];
}

void hold_open(int file) {
  struct flock lock = whole_file(F_RDLCK);
  if (fcntl(file, F_SETLK, &lock) != 0) std::abort();
}

bool map_guarded(int file, std::size_t bytes, Range* range) {
  const std::size_t pages = whole_pages(bytes);
  void* const space = mmap(nullptr, pages + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return false;
  char* const inside = static_cast<char*>(space) + kPage;
  if (mmap(inside, pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    munmap(space, pages + 2 * kPage);
    return false;
  }
  range->mapping = reinterpret_cast<std::uintptr_t>(space);
  range->mapping_bytes = pages + 2 * kPage;
  range->base = reinterpret_cast<std::uintptr_t>(inside) + offset_in_file(bytes);
  range->bytes = bytes;
  return true;
}

void unmap_guarded(const Range& range) {
  // The addresses stay reserved, so that a use after free crashes instead of accessing the next allocation.
  void* const space = reinterpret_cast<void*>(range.mapping);
  if (mmap(space, range.mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
      MAP_FAILED) {
    std::abort();
  }
}

}  // namespace cuda_double

using namespace cuda_double;

CU_API cuMemAlloc_v2(CUdeviceptr* pointer, std::size_t bytes) {
  CU_ENTER(kDriver | kContext | kNoCapture);
  if (!pointer || bytes == 0) return kInvalidValue;
  const int device = current_device();
  if (bytes > kMemoryBytes || device_bytes(device) > kMemoryBytes - bytes) return kOutOfMemory;
  const int file = memfd_create("test-double-gpu", MFD_CLOEXEC);
  if (file < 0) return kOutOfMemory;
  Range range;
  struct stat about;
  if (ftruncate(file, static_cast<off_t>(whole_pages(bytes))) || fstat(file, &about) ||
      !map_guarded(file, bytes, &range)) {
    close(file);
    return kOutOfMemory;
  }
  std::memset(reinterpret_cast<void*>(range.base), kFresh, bytes);
  std::memset(reinterpret_cast<void*>(range.base + bytes), kSlack, slack(bytes));
  range.kind = Kind::device;
  range.device = device;
  range.file = file;
  range.inode = about.st_ino;
  add_range(range);
  *pointer = range.base;
  return kSuccess;
}

CU_API cuMemFree_v2(CUdeviceptr pointer) {
  CU_ENTER(kDriver | kContext | kNoCapture);
  if (pointer == 0) return kSuccess;
  Range range;
  if (!find_range(pointer, &range) || range.base != pointer || range.kind != Kind::device) return kInvalidValue;
  // Ranks that share a GPU would wait for each other here, as on a real one: their tests free nothing.
  if (std::getenv("BLINK_DOUBLE_KEEP") != nullptr) return kSuccess;
  wait_for_device(range.device);  // as the real one does
  if (!remove_range(pointer, Kind::device, &range)) return kInvalidValue;
  check_slack(range);
  check_closed(range);
  unmap_guarded(range);
  close(range.file);
  return kSuccess;
}

CU_API cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  CU_ENTER(kDriver | kContext);
  if (!free_bytes || !total_bytes) return kInvalidValue;
  *total_bytes = kMemoryBytes;
  *free_bytes = kMemoryBytes - device_bytes(current_device());
  return kSuccess;
}

CU_API cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned flags) {
  CU_ENTER(kDriver | kContext | kNoCapture);
  if (!pointer || bytes == 0 || flags > 15) return kInvalidValue;
  Range range;
  const auto base = reinterpret_cast<std::uintptr_t>(pointer);
  if (find_range(base, &range) || find_range(base + bytes - 1, &range)) return kHostMemoryAlreadyRegistered;
  range = Range();
  range.base = base;
  range.bytes = bytes;
  range.kind = Kind::host_registered;
  range.device = current_device();
  add_range(range);
  return kSuccess;
}

CU_API cuMemHostUnregister(void* pointer) {
  CU_ENTER(kDriver | kContext | kNoCapture);
  Range range;
  if (!pointer) return kInvalidValue;
  if (!find_range(reinterpret_cast<std::uintptr_t>(pointer), &range)) return kHostMemoryNotRegistered;
  wait_for_device(range.device);
  const auto base = reinterpret_cast<std::uintptr_t>(pointer);
  return remove_range(base, Kind::host_registered, &range) ? kSuccess : kHostMemoryNotRegistered;
}

CU_API cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned flags) {
  CU_ENTER(kDriver | kContext);
  Range range;
  if (!out || flags != 0) return kInvalidValue;
  if (!find_range(reinterpret_cast<std::uintptr_t>(pointer), &range) || range.on_device()) return kInvalidValue;
  *out = reinterpret_cast<std::uintptr_t>(pointer);
  return kSuccess;
}
