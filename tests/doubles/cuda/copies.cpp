// How do bytes move? By the thread of the stream, when it gets there.
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "contexts.h"
#include "devices.h"
#include "entry.h"
#include "ranges.h"
#include "streams.h"

using namespace cuda_double;

namespace {

enum class Place { device, host, any };

// 0, and where the bytes lie; or an error where they cannot be what the call says they are.
CUresult locate(std::uintptr_t address, std::size_t bytes, Place place, Range* range, bool* pageable) {
  const bool known = find_range(address, range);
  *pageable = !known;
  if (known && bytes > range->base + range->bytes - address) return kInvalidValue;
  if (place == Place::device && !known) return kInvalidValue;
  if (!known) *range = Range();
  return kSuccess;
}

bool is_capturing(CUstream handle) {
  const auto stream = stream_of(handle);
  if (!stream) return false;
  std::lock_guard<std::mutex> lock(engine());
  return stream->capture != nullptr;
}

CUresult copy(std::uintptr_t to, Place to_place, std::uintptr_t from, Place from_place, std::size_t bytes,
              CUstream stream, bool wait) {
  Range target, source;
  bool target_pageable = false, source_pageable = false;
  if (bytes == 0) return stream_of(stream) ? kSuccess : kInvalidHandle;
  if (CUresult error = locate(to, bytes, to_place, &target, &target_pageable)) return error;
  if (CUresult error = locate(from, bytes, from_place, &source, &source_pageable)) return error;
  const int source_device = source.on_device() ? source.device : -1;
  const int target_device = target.on_device() ? target.device : -1;
  const bool spoils = machine().spoils(source_device, target_device);
  const bool dawdles = machine().dawdles(source_device, target_device);
  const bool capturing = is_capturing(stream);
  // What can be paged is read at once; and nothing returns before what can be paged is written.
  std::shared_ptr<std::vector<char>> staged;
  if (source_pageable && !capturing) {
    const char* bytes_at = reinterpret_cast<const char*>(from);
    staged = std::make_shared<std::vector<char>>(bytes_at, bytes_at + bytes);
  }
  const Work work = [=] {
    if (dawdles) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    char* const target_at = reinterpret_cast<char*>(to);
    std::memmove(target_at, staged ? staged->data() : reinterpret_cast<const char*>(from), bytes);
    if (spoils) target_at[bytes / 2] = static_cast<char>(target_at[bytes / 2] ^ 0x10);
  };
  OpPtr op;
  if (CUresult error = submit(stream, work, &op)) return error;
  if (op && (wait || target_pageable)) wait_for_op(op);
  return kSuccess;
}

CUresult fill(std::uintptr_t to, unsigned value, std::size_t value_bytes, std::size_t count, CUstream stream,
              bool wait) {
  Range range;
  bool pageable = false;
  if (count == 0) return stream_of(stream) ? kSuccess : kInvalidHandle;
  if (to % value_bytes) return kInvalidValue;
  if (CUresult error = locate(to, value_bytes * count, Place::device, &range, &pageable)) return error;
  const Work work = [=] {
    if (value_bytes == 1) {
      std::memset(reinterpret_cast<void*>(to), static_cast<int>(value & 0xff), count);
    } else {
      for (std::size_t i = 0; i < count; ++i) reinterpret_cast<std::uint32_t*>(to)[i] = value;
    }
  };
  OpPtr op;
  if (CUresult error = submit(stream, work, &op)) return error;
  if (op && wait) wait_for_op(op);
  return kSuccess;
}

std::uintptr_t number(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

constexpr unsigned kAsync = kDriver | kContext, kSync = kDriver | kContext | kNoCapture;

}  // namespace

CU_API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  CU_ENTER_STREAM(kAsync, stream);
  return copy(to, Place::device, number(from), Place::host, bytes, stream, false);
}

CU_API cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  CU_ENTER_STREAM(kAsync, stream);
  return copy(number(to), Place::host, from, Place::device, bytes, stream, false);
}

CU_API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  CU_ENTER_STREAM(kAsync, stream);
  return copy(to, Place::device, from, Place::device, bytes, stream, false);
}

CU_API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                         std::size_t bytes, CUstream stream) {
  CU_ENTER_STREAM(kAsync, stream);
  if (device_of(to_context) < 0 || device_of(from_context) < 0) return kInvalidContext;
  return copy(to, Place::device, from, Place::device, bytes, stream, false);
}

CU_API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  CU_ENTER_STREAM(kAsync, stream);
  return copy(to, Place::any, from, Place::any, bytes, stream, false);
}

CU_API cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  CU_ENTER(kSync);
  return copy(to, Place::any, from, Place::any, bytes, nullptr, true);
}

CU_API cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  CU_ENTER(kSync);
  return copy(to, Place::device, number(from), Place::host, bytes, nullptr, true);
}

CU_API cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  CU_ENTER(kSync);
  return copy(number(to), Place::host, from, Place::device, bytes, nullptr, true);
}

CU_API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  CU_ENTER(kSync);
  return copy(to, Place::device, from, Place::device, bytes, nullptr, true);
}

CU_API cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) {
  CU_ENTER_STREAM(kAsync, stream);
  return fill(to, value, 1, count, stream, false);
}

CU_API cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream) {
  CU_ENTER_STREAM(kAsync, stream);
  return fill(to, value, 4, count, stream, false);
}

CU_API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, std::size_t count) {
  CU_ENTER(kSync);
  return fill(to, value, 1, count, nullptr, true);
}

CU_API cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  CU_ENTER_STREAM(kAsync, stream);
  if (!function) return kInvalidValue;
  return submit(stream, [=] { function(data); });
}

CU_API cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr to, std::uint64_t value, unsigned flags) {
  CU_ENTER_STREAM(kAsync, stream);
  Range range;
  if (to % 8 || flags > 1 || !covers(to, 8, &range)) return kInvalidValue;
  return submit(stream, [=] { __atomic_store_n(reinterpret_cast<std::uint64_t*>(to), value, __ATOMIC_RELEASE); });
}

CU_API cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr at, std::uint64_t value, unsigned flags) {
  CU_ENTER_STREAM(kAsync, stream);
  Range range;
  if (at % 8 || flags > 3 || !covers(at, 8, &range)) return kInvalidValue;
  return submit(stream, [=] {
    for (;;) {
      const std::uint64_t seen = __atomic_load_n(reinterpret_cast<std::uint64_t*>(at), __ATOMIC_ACQUIRE);
      if (flags == 0 && static_cast<std::int64_t>(seen - value) >= 0) return;
      if (flags == 1 && seen == value) return;
      if (flags == 2 && (seen & value) != 0) return;
      if (flags == 3 && ~(seen | value) != 0) return;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
}
