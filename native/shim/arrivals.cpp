#include "arrivals.h"

#include <algorithm>

#include "blink/call.h"
#include "sha256.h"

namespace blink::shim {
namespace {

constexpr std::size_t kBehindCounter = kStride * sizeof(Word) - Arrivals::kMarkBytes;
static_assert(kBehindCounter >= sizeof(Word), "a mark leaves its counter alone");

}  // namespace

Arrivals::Arrivals(const Driver& driver, const Bundle& bundle, int rank,
                   const std::vector<CUdeviceptr>& segments, CUdeviceptr scratch)
    : driver_(driver), scratch_(scratch) {
  for (std::size_t i = 0; i < bundle.connections.size(); ++i) {
    const Bundle::Connection& connection = bundle.connections[i];
    if (connection.src != rank && connection.dst != rank) continue;
    const auto mark = [&](int from, int to, std::uint64_t counter) {
      const std::string name = bundle.plan + " " + std::to_string(i) + " " + std::to_string(from);
      return Mark{from, segments[static_cast<std::size_t>(to)] + counter + kBehindCounter,
                  sha256(name.data(), name.size())};
    };
    const Mark ahead = mark(connection.src, connection.dst, connection.tail);
    const Mark back = mark(connection.dst, connection.src, connection.head);
    mine_.push_back(connection.src == rank ? ahead : back);
    theirs_.push_back(connection.src == rank ? back : ahead);
  }
}

CUresult Arrivals::write(CUstream stream) const {
  std::string all;
  for (const Mark& mark : mine_) all += mark.text;
  if (all.empty()) return kCudaSuccess;
  // From this GPU's memory, so that this GPU stores it, as its kernels do.
  CUresult result = driver_.copy_to_device(scratch_, all.data(), all.size(), stream);
  for (std::size_t i = 0; i < mine_.size() && result == kCudaSuccess; ++i) {
    result = driver_.copy_on_device(mine_[i].at, scratch(i), kMarkBytes, stream);
  }
  return result;
}

CUresult Arrivals::gather(CUstream stream) const {
  CUresult result = kCudaSuccess;
  for (std::size_t i = 0; i < theirs_.size() && result == kCudaSuccess; ++i) {
    result = driver_.copy_on_device(scratch(i), theirs_[i].at, kMarkBytes, stream);
  }
  return result;
}

CUresult Arrivals::missing(CUstream stream, std::vector<int>* ranks) const {
  std::string all(theirs_.size() * kMarkBytes, '\0');
  if (all.empty()) return kCudaSuccess;
  CUresult result = driver_.copy_to_host(&all[0], scratch_, all.size(), stream);
  if (result == kCudaSuccess) result = driver_.stream_synchronize(stream);
  for (std::size_t i = 0; i < theirs_.size() && result == kCudaSuccess; ++i) {
    const bool known = std::find(ranks->begin(), ranks->end(), theirs_[i].from) != ranks->end();
    if (!known && all.compare(i * kMarkBytes, kMarkBytes, theirs_[i].text) != 0) ranks->push_back(theirs_[i].from);
  }
  return result;
}

}  // namespace blink::shim
