// Is every store that does not arrive noticed, by the rank that it was for, and does nothing but marks change? Two
// ranks with one connection, on memory of this process and a driver whose copies are memcpy.
// Sanitizers: address.
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "peer_write_probe.h"
#include "check.h"

namespace {

using namespace blink_test;
using namespace blink::shim;

constexpr std::size_t kSegment = 4096, kTail = 1024, kPosition = 1152, kHead = 2048;
unsigned char segments[2][kSegment], scratch[2][PeerWriteProbe::kProbeBytes];
int lost_at = -1;  // copies into that rank's segment go nowhere

CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }
void* pointer(CUdeviceptr at) { return reinterpret_cast<void*>(at); }

Driver memory_driver() {
  Driver driver;
  driver.copy_to_device = [](CUdeviceptr to, const void* from, std::size_t bytes, CUstream) -> CUresult {
    std::memcpy(pointer(to), from, bytes);
    return kCudaSuccess;
  };
  driver.copy_to_host = [](void* to, CUdeviceptr from, std::size_t bytes, CUstream) -> CUresult {
    std::memcpy(to, pointer(from), bytes);
    return kCudaSuccess;
  };
  driver.copy_on_device = [](CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream) -> CUresult {
    const bool lost = lost_at >= 0 && to >= address(segments[lost_at]) && to < address(segments[lost_at] + kSegment);
    if (!lost) std::memcpy(pointer(to), pointer(from), bytes);
    return kCudaSuccess;
  };
  driver.stream_synchronize = [](CUstream) -> CUresult { return kCudaSuccess; };
  return driver;
}

// Whose marks each rank misses where stores into one segment are lost.
std::pair<std::vector<int>, std::vector<int>> missing_where_lost(int segment) {
  static const Driver driver = memory_driver();
  Bundle bundle;
  bundle.plan = "a plan";
  bundle.nranks = 2;
  Bundle::Connection connection;
  connection.src = 0;
  connection.dst = 1;
  connection.tail = kTail;
  connection.dst_position = kPosition;
  connection.head = kHead;
  bundle.connections = {connection};
  std::memset(segments, 0, sizeof segments);
  std::memset(scratch, 0, sizeof scratch);
  lost_at = segment;
  const std::vector<CUdeviceptr> mapped{address(segments[0]), address(segments[1])};
  std::vector<PeerWriteProbe> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.emplace_back(driver, bundle, rank, mapped, address(scratch[rank]));
  for (const PeerWriteProbe& rank : ranks) expect(rank.write(nullptr) == kCudaSuccess, "written");
  std::vector<int> missing[2];
  for (std::size_t rank = 0; rank < 2; ++rank) {
    expect(ranks[rank].gather(nullptr) == kCudaSuccess, "gathered");
    expect(ranks[rank].missing(nullptr, &missing[rank]) == kCudaSuccess, "compared");
  }
  return {missing[0], missing[1]};
}

void stores_that_are_lost_are_noticed() {
  using Missing = std::pair<std::vector<int>, std::vector<int>>;
  expect(missing_where_lost(-1) == Missing({}, {}), "all arrive");
  expect(missing_where_lost(1) == Missing({}, {0}), "rank 1 misses what rank 0 writes");
  expect(missing_where_lost(0) == Missing({1}, {}), "rank 0 misses what rank 1 writes");
}

// What kernels read is as zero as they expect it.
void counters_stay_zero() {
  missing_where_lost(-1);
  const std::size_t line = 128;
  const std::size_t counters[2] = {kHead, kTail};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::size_t i = 0; i < kSegment; ++i) {
      const bool may_differ = i >= counters[rank] + sizeof(std::uint64_t) && i < counters[rank] + line;
      expect(segments[rank][i] == 0 || may_differ, "byte %zu of rank %zu was written", i, rank);
    }
  }
}

}  // namespace

int main() {
  stores_that_are_lost_are_noticed();
  counters_stay_zero();
  return verdict();
}
