#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "contexts.h"
#include "devices.h"
#include "entry.h"
#include "streams.h"

namespace cuda_double {
namespace {

constexpr std::size_t kPage = 4096, kAlignment = 256;
constexpr unsigned char kFresh = 0xa5, kSlack = 0xc3;  // what nobody has written yet; what nobody may write

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// The bytes between the end of an allocation and the guard page. Who wrote there wrote past the end.
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

// A lock tells of others, and goes with the process that holds it.
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

void hold_open(int file) {
  struct flock lock = whole_file(F_RDLCK);
  if (fcntl(file, F_SETLK, &lock) != 0) std::abort();
}

std::size_t offset_in_file(std::size_t bytes) {
  return (whole_pages(bytes) - bytes) / kAlignment * kAlignment;
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
  range->file_offset = offset_in_file(bytes);
  range->base = reinterpret_cast<std::uintptr_t>(inside) + range->file_offset;
  range->bytes = bytes;
  return true;
}

void unmap_guarded(const Range& range) {
  // The addresses stay taken, so that a use after free crashes instead of finding the next allocation.
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
  if (bytes > machine().memory_bytes || device_bytes(device) > machine().memory_bytes - bytes) return kOutOfMemory;
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
  // Ranks that share a GPU would wait for each other here, as they would on a real one: their tests free nothing.
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
  *total_bytes = machine().memory_bytes;
  *free_bytes = machine().memory_bytes - device_bytes(current_device());
  return kSuccess;
}

CU_API cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr pointer) {
  CU_ENTER(kDriver | kContext);
  Range range;
  if (!find_range(pointer, &range) || range.kind == Kind::host_registered) return kNotFound;
  if (base) *base = range.base;
  if (bytes) *bytes = range.bytes;
  return kSuccess;
}

static CUresult allocate_host(void** pointer, std::size_t bytes) {
  if (!pointer || bytes == 0) return kInvalidValue;
  void* const memory = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  Range range;
  range.base = reinterpret_cast<std::uintptr_t>(memory);
  range.bytes = bytes;
  range.kind = Kind::host_allocated;
  range.device = current_device();
  add_range(range);
  *pointer = memory;
  return kSuccess;
}

CU_API cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  CU_ENTER(kDriver | kContext | kNoCapture);
  return allocate_host(pointer, bytes);
}

CU_API cuMemAllocHost_v2(void** pointer, std::size_t bytes) {
  CU_ENTER(kDriver | kContext | kNoCapture);
  return allocate_host(pointer, bytes);
}

CU_API cuMemFreeHost(void* pointer) {
  CU_ENTER(kDriver | kContext | kNoCapture);
  Range range;
  if (!find_range(reinterpret_cast<std::uintptr_t>(pointer), &range)) return kInvalidValue;
  wait_for_device(range.device);
  if (!remove_range(reinterpret_cast<std::uintptr_t>(pointer), Kind::host_allocated, &range)) return kInvalidValue;
  munmap(pointer, whole_pages(range.bytes));
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

CU_API cuPointerGetAttribute(void* data, int attribute, CUdeviceptr pointer) {
  CU_ENTER(kDriver);
  Range range;
  if (!data) return kInvalidValue;
  if (!find_range(pointer, &range)) return kInvalidValue;
  switch (attribute) {
    case 2: *static_cast<unsigned*>(data) = range.on_device() ? 2 : 1; return kSuccess;       // where it lies
    case 3: *static_cast<CUdeviceptr*>(data) = pointer; return kSuccess;                      // for the device
    case 4:                                                                                   // for the host
      if (range.on_device()) return kInvalidValue;
      *static_cast<CUdeviceptr*>(data) = pointer;
      return kSuccess;
    case 7: *static_cast<unsigned long long*>(data) = range.id; return kSuccess;
    case 8: *static_cast<unsigned*>(data) = 0; return kSuccess;                               // managed
    case 9: *static_cast<int*>(data) = range.device; return kSuccess;
    case 10: *static_cast<int*>(data) = range.kind == Kind::device; return kSuccess;          // legacy IPC
    case 11: *static_cast<CUdeviceptr*>(data) = range.base; return kSuccess;
    case 12: *static_cast<std::size_t*>(data) = range.bytes; return kSuccess;
    default: return kNotSupported;
  }
}
