// Copies, fills and waits in streams: the stream's thread moves the bytes when it reaches the command.
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "devices.h"
#include "entry.h"
#include "memory.h"
#include "streams.h"

using namespace cuda_double;

namespace {

// Returns 0 and the place of the bytes; or an error if they are not of the kind that the call requires.
CUresult locate(std::uintptr_t address, std::size_t bytes, bool on_device, Range* range) {
  if (!find_range(address, range)) {
    *range = Range();
    return on_device ? kInvalidValue : kSuccess;
  }
  return bytes > range->base + range->bytes - address ? kInvalidValue : kSuccess;
}

bool is_capturing(CUstream handle) {
  const auto stream = stream_of(handle);
  if (!stream) return false;
  std::lock_guard<std::mutex> lock(engine());
  return stream->capture != nullptr;
}

enum class Way { to_device, to_host, on_device };

// Delay of bytes from pageable memory, for work that does not wait for them.
constexpr std::chrono::milliseconds kLate(20);

CUresult copy(Way way, std::uintptr_t to, std::uintptr_t from, std::size_t bytes, CUstream stream, bool wait = false) {
  Range target, source;
  if (bytes == 0) return stream_of(stream) ? kSuccess : kInvalidHandle;
  if (CUresult error = locate(to, bytes, way != Way::to_host, &target)) return error;
  if (CUresult error = locate(from, bytes, way != Way::to_device, &source)) return error;
  const bool target_pageable = target.bytes == 0, source_pageable = source.bytes == 0;
  const int source_device = source.on_device() ? source.device : -1;
  const int target_device = target.on_device() ? target.device : -1;
  const bool spoils = machine().spoils(source_device, target_device);
  const bool dawdles = machine().dawdles(source_device, target_device);
  const bool capturing = is_capturing(stream);
  // Pageable memory is read at once, unless the GPU reads the host's pages (ATS): then it is read as late as possible.
  // The data arrive after the return of a waiting call. And no call returns before pageable memory is written.
  std::shared_ptr<std::vector<char>> staged;
  if (source_pageable && !capturing && (wait || !machine().reads_pages)) {
    const char* bytes_at = reinterpret_cast<const char*>(from);
    staged = std::make_shared<std::vector<char>>(bytes_at, bytes_at + bytes);
  }
  const Work work = [=] {
    if (dawdles) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    char* const target_at = reinterpret_cast<char*>(to);
    std::memmove(target_at, staged ? staged->data() : reinterpret_cast<const char*>(from), bytes);
    if (spoils) target_at[bytes / 2] = static_cast<char>(target_at[bytes / 2] ^ 0x10);
  };
  OpPtr before, op;
  const bool late = source_pageable && !target_pageable && (wait || machine().reads_pages);
  if (late && wait) {  // waits for earlier work, but not for its own bytes
    if (CUresult error = submit(stream, nullptr, &before)) return error;
    wait_for_op(before);
  }
  if (CUresult error = submit(stream, work, &op, late ? kLate : kLate * 0)) return error;
  if (op && ((wait && !late) || target_pageable)) wait_for_op(op);
  return kSuccess;
}

std::uintptr_t number(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

constexpr unsigned kAsync = kDriver | kContext, kSync = kDriver | kContext | kNoCapture;

}  // namespace

CU_API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  CU_ENTER(kAsync);
  return copy(Way::to_device, to, number(from), bytes, stream);
}

CU_API cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  CU_ENTER(kAsync);
  return copy(Way::to_host, number(to), from, bytes, stream);
}

CU_API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  CU_ENTER(kAsync);
  return copy(Way::on_device, to, from, bytes, stream);
}

CU_API cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  CU_ENTER(kSync);
  return copy(Way::to_device, to, number(from), bytes, nullptr, true);
}

CU_API cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  CU_ENTER(kSync);
  return copy(Way::to_host, number(to), from, bytes, nullptr, true);
}

CU_API cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) {
  CU_ENTER(kAsync);
  Range range;
  if (count == 0) return stream_of(stream) ? kSuccess : kInvalidHandle;
  if (CUresult error = locate(to, count, true, &range)) return error;
  return submit(stream, [=] { std::memset(reinterpret_cast<void*>(to), value, count); });
}

CU_API cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  CU_ENTER(kAsync);
  if (!function) return kInvalidValue;
  return submit(stream, [=] { function(data); });
}

CU_API cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr to, std::uint64_t value, unsigned flags) {
  CU_ENTER(kAsync);
  Range range;
  if (to % 8 || flags > 1 || locate(to, 8, true, &range)) return kInvalidValue;
  return submit(stream, [=] { __atomic_store_n(reinterpret_cast<std::uint64_t*>(to), value, __ATOMIC_RELEASE); });
}

CU_API cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr at, std::uint64_t value, unsigned flags) {
  CU_ENTER(kAsync);
  Range range;
  if (at % 8 || flags > 1 || locate(at, 8, true, &range)) return kInvalidValue;
  return submit(stream, [=] {
    // Dozens of streams may wait at once, so a long wait polls less often.
    for (int pause_us = 20;; pause_us = std::min(2 * pause_us, 320)) {
      const std::uint64_t seen = __atomic_load_n(reinterpret_cast<std::uint64_t*>(at), __ATOMIC_ACQUIRE);
      if (flags == 0 && static_cast<std::int64_t>(seen - value) >= 0) return;
      if (flags == 1 && seen == value) return;
      std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
    }
  });
}
