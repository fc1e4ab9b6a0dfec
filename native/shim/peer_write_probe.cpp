#include "peer_write_probe.h"

#include <algorithm>

#include "blink/call.h"
#include "sha256.h"

namespace blink::shim {
namespace {

constexpr std::size_t kBehindCounter = kStride * sizeof(Word) - PeerWriteProbe::kProbeBytes;
static_assert(kBehindCounter >= sizeof(Word), "a probe leaves its counter alone");

}  // namespace

PeerWriteProbe::PeerWriteProbe(const Driver& driver, const Bundle& bundle, int rank,
                   const std::vector<CUdeviceptr>& segments, CUdeviceptr scratch)
    : driver_(driver), scratch_(scratch) {
  for (std::size_t i = 0; i < bundle.connections.size(); ++i) {
    const Bundle::Connection& connection = bundle.connections[i];
    if (connection.src != rank && connection.dst != rank) continue;
    const auto probe = [&](int from, int to, std::uint64_t counter) {
      const std::string name = bundle.plan + " " + std::to_string(i) + " " + std::to_string(from);
      return Probe{from, segments[static_cast<std::size_t>(to)] + counter + kBehindCounter,
                  sha256(name.data(), name.size())};
    };
    const Probe ahead = probe(connection.src, connection.tail_at(), connection.tail);
    const Probe back = probe(connection.dst, connection.head_at(), connection.head);
    mine_.push_back(connection.src == rank ? ahead : back);
    theirs_.push_back(connection.src == rank ? back : ahead);
  }
  for (const Probe& one : mine_) texts_ += one.text;
}

CUresult PeerWriteProbe::write(CUstream stream) const {
  if (texts_.empty()) return kCudaSuccess;
  // Copied from this GPU's memory, so that this GPU performs the stores, as for kernels.
  CUresult result = driver_.copy_to_device(scratch_, texts_.data(), texts_.size(), stream);
  for (std::size_t i = 0; i < mine_.size() && result == kCudaSuccess; ++i) {
    result = driver_.copy_on_device(mine_[i].at, scratch(i), kProbeBytes, stream);
  }
  return result;
}

CUresult PeerWriteProbe::gather(CUstream stream) const {
  CUresult result = kCudaSuccess;
  for (std::size_t i = 0; i < theirs_.size() && result == kCudaSuccess; ++i) {
    result = driver_.copy_on_device(scratch(i), theirs_[i].at, kProbeBytes, stream);
  }
  return result;
}

CUresult PeerWriteProbe::missing(CUstream stream, std::vector<int>* ranks) const {
  std::string all(theirs_.size() * kProbeBytes, '\0');
  if (all.empty()) return kCudaSuccess;
  CUresult result = driver_.copy_to_host(&all[0], scratch_, all.size(), stream);
  if (result == kCudaSuccess) result = driver_.stream_synchronize(stream);
  for (std::size_t i = 0; i < theirs_.size() && result == kCudaSuccess; ++i) {
    const bool known = std::find(ranks->begin(), ranks->end(), theirs_[i].from) != ranks->end();
    if (!known && all.compare(i * kProbeBytes, kProbeBytes, theirs_[i].text) != 0) ranks->push_back(theirs_[i].from);
  }
  return result;
}

}  // namespace blink::shim
