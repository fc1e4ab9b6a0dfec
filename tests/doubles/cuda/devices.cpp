#include "devices.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "blink/call.h"
#include "entry.h"

namespace cuda_double {
namespace {

std::vector<std::pair<int, int>> pairs(const char* name) {
  std::vector<std::pair<int, int>> found;
  for (const std::string& word : words(name)) {
    int from = -1, to = -1;
    if (std::sscanf(word.c_str(), "%d-%d", &from, &to) != 2) {
      std::fprintf(stderr, "cuda double: %s wants pairs such as 0-1, got %s\n", name, word.c_str());
      std::abort();
    }
    found.emplace_back(from, to);
  }
  return found;
}

bool holds(const std::vector<std::pair<int, int>>& list, int a, int b) {
  return std::find(list.begin(), list.end(), std::make_pair(a, b)) != list.end();
}

Machine described() {
  Machine made;
  const char* exclusive = std::getenv("BLINK_DOUBLE_EXCLUSIVE");
  made.exclusive = exclusive ? exclusive : "";
  made.driver = static_cast<int>(setting("BLINK_DOUBLE_DRIVER", 13000));
  made.arch = static_cast<int>(setting("BLINK_DOUBLE_ARCH", 90));
  made.multiprocessors = static_cast<int>(setting("BLINK_DOUBLE_SMS", 132));
  made.occupancy = static_cast<int>(setting("BLINK_DOUBLE_OCCUPANCY", 0));
  made.reads_pages = setting("BLINK_DOUBLE_ATS", 0) != 0;
  const std::vector<std::string> serial =
      std::getenv("BLINK_DOUBLE_SERIAL") ? words("BLINK_DOUBLE_SERIAL") : std::vector<std::string>{"branches"};
  const auto is_serial = [&](const char* what) { return std::find(serial.begin(), serial.end(), what) != serial.end(); };
  made.serial_kernels = is_serial("kernels");
  made.serial_branches = is_serial("branches");
  made.no_peer = pairs("BLINK_DOUBLE_NO_PEER");
  made.bad_peer = pairs("BLINK_DOUBLE_BAD_PEER");
  made.slow_peer = pairs("BLINK_DOUBLE_SLOW_PEER");
  const int count = static_cast<int>(setting("BLINK_DOUBLE_DEVICES", 4));
  std::vector<int> visible;
  if (std::getenv("CUDA_VISIBLE_DEVICES")) {
    // The first number without a device hides all that follow, as in CUDA.
    for (const std::string& word : words("CUDA_VISIBLE_DEVICES")) {
      const int number = std::atoi(word.c_str());
      if (number < 0 || number >= count) break;
      visible.push_back(number);
    }
  } else {
    for (int number = 0; number < count; ++number) visible.push_back(number);
  }
  for (int number : visible) {
    Device device{number, "", {}};
    char text[32];
    std::snprintf(text, sizeof text, "0000:%02x:00.0", number);
    device.bus_id = text;
    std::memcpy(device.uuid.bytes, "test-double-gpu", 15);
    device.uuid.bytes[15] = static_cast<char>(number);
    made.devices.push_back(device);
  }
  return made;
}

}  // namespace

long setting(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atol(text) : otherwise;
}

std::vector<std::string> words(const char* name) {
  std::vector<std::string> found;
  const char* text = std::getenv(name);
  std::istringstream rest(text ? text : "");
  for (std::string word; std::getline(rest, word, ',');) found.push_back(word);
  return found;
}

const Machine& machine() {
  static const Machine& only = *new Machine(described());
  return only;
}

bool Machine::can_reach(int ordinal, int peer) const {
  return ordinal != peer && !holds(no_peer, devices[static_cast<std::size_t>(ordinal)].number,
                                   devices[static_cast<std::size_t>(peer)].number);
}

bool Machine::lists(const std::vector<std::pair<int, int>>& list, int from, int to) const {
  if (list.empty() || !has(from) || !has(to)) return false;
  return holds(list, devices[static_cast<std::size_t>(from)].number, devices[static_cast<std::size_t>(to)].number);
}

int Machine::ordinal_of(const CUuuid& uuid) const {
  for (std::size_t ordinal = 0; ordinal < devices.size(); ++ordinal) {
    if (!std::memcmp(devices[ordinal].uuid.bytes, uuid.bytes, sizeof uuid.bytes)) return static_cast<int>(ordinal);
  }
  return -1;
}

namespace {

// The resources of a multiprocessor: threads, blocks, bytes of shared memory; and 65536 registers.
struct Multiprocessor {
  int threads, blocks, shared_bytes;
};

Multiprocessor multiprocessor_of(int arch) {
  if (arch == 75) return {1024, 16, 64 << 10};
  if (arch == 80) return {2048, 32, 164 << 10};
  if (arch >= 86 && arch < 90) return {1536, arch == 89 ? 24 : 16, (arch == 87 ? 164 : 100) << 10};
  if (arch >= 120) return {1536, 24, 100 << 10};
  if (arch >= 90) return {2048, 32, 228 << 10};
  return {2048, 32, 96 << 10};
}

}  // namespace

// For kernels of the maximum size: tests/conformance/test_machine_code.py compares real ones with these numbers.
int occupancy_of(int threads) {
  if (machine().occupancy > 0) return machine().occupancy;
  const Multiprocessor has = multiprocessor_of(machine().arch);
  const int whole_warps = (threads + 31) / 32 * 32;
  return std::min({has.blocks, has.threads / whole_warps, has.shared_bytes / static_cast<int>(blink::kBlockBytes),
                   65536 / (whole_warps * static_cast<int>(blink::kThreadRegisters))});
}

}  // namespace cuda_double

using namespace cuda_double;

CU_API cuInit(unsigned flags) {
  CU_ENTER(kNothing);
  if (flags != 0) return kInvalidValue;
  if (machine().devices.empty()) return kNoDevice;
  mark_initialized();
  return kSuccess;
}

CU_API cuDriverGetVersion(int* version) {
  CU_ENTER(kNothing);
  if (!version) return kInvalidValue;
  *version = machine().driver;
  return kSuccess;
}

CU_API cuDeviceGetCount(int* count) {
  CU_ENTER(kDriver);
  if (!count) return kInvalidValue;
  *count = static_cast<int>(machine().devices.size());
  return kSuccess;
}

CU_API cuDeviceGet(CUdevice* device, int ordinal) {
  CU_ENTER(kDriver);
  if (!device) return kInvalidValue;
  if (!machine().has(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

CU_API cuDeviceGetName(char* name, int length, CUdevice device) {
  CU_ENTER(kDriver);
  if (!name || length <= 0) return kInvalidValue;
  if (!machine().has(device)) return kInvalidDevice;
  std::snprintf(name, static_cast<std::size_t>(length), "%s", "Test Double GPU");
  return kSuccess;
}

CU_API cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  CU_ENTER(kDriver);
  if (!uuid) return kInvalidValue;
  if (!machine().has(device)) return kInvalidDevice;
  *uuid = machine().devices[static_cast<std::size_t>(device)].uuid;
  return kSuccess;
}

CU_API cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  CU_ENTER(kDriver);
  if (!text || length <= 0) return kInvalidValue;
  if (!machine().has(device)) return kInvalidDevice;
  const std::string& id = machine().devices[static_cast<std::size_t>(device)].bus_id;
  if (static_cast<int>(id.size()) >= length) return kInvalidValue;
  std::snprintf(text, static_cast<std::size_t>(length), "%s", id.c_str());
  return kSuccess;
}

CU_API cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  CU_ENTER(kDriver);
  if (!value) return kInvalidValue;
  if (!machine().has(device)) return kInvalidDevice;
  switch (attribute) {
    case 16: *value = machine().multiprocessors; break;
    case 20: *value = machine().exclusive.empty() ? 0 : 3; break;  // compute mode
    case 75: *value = machine().arch / 10; break;
    case 76: *value = machine().arch % 10; break;
    case 122: *value = setting("BLINK_DOUBLE_MEM_OPS", 1) ? 1 : 0; break;  // stream memory operations of 64 bits
    case 126:
      if (machine().memory_domains() == 0) return kInvalidValue;
      *value = machine().memory_domains();
      break;
    default:
      if (attribute < 1 || attribute > 200) return kInvalidValue;
      *value = 0;
  }
  return kSuccess;
}

CU_API cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  CU_ENTER(kDriver);
  if (!can) return kInvalidValue;
  if (!machine().has(device) || !machine().has(peer)) return kInvalidDevice;
  *can = machine().can_reach(device, peer) ? 1 : 0;
  return kSuccess;
}

CU_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, std::size_t) {
  CU_ENTER(kContext | kDriver);
  if (!blocks || !function || threads < 1 || threads > 1024) return kInvalidValue;
  *blocks = occupancy_of(threads);
  return kSuccess;
}
