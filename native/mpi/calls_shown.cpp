#include "calls_shown.h"

#include <string>

#include "report.h"

namespace blink::mpi {
namespace {

std::string text_of(int rank, std::uint64_t word) {
  return "rank " + std::to_string(rank) + " calls " + name_of_collective(static_cast<std::int32_t>(word >> 16 & 0xff)) +
         ", root " + std::to_string(word & 0xffff);
}

}  // namespace

void CallsShown::open(blink_comm* comm, void* memory) {
  comm_ = comm;
  memory_ = static_cast<unsigned char*>(memory);
}

std::atomic<std::uint64_t>& CallsShown::call_of(int rank) const {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(memory_ + static_cast<std::uint64_t>(rank) * kLineBytes);
}

int CallsShown::check() {
  for (int peer = 0; peer < comm_->size(); ++peer) {
    const std::uint64_t word = call_of(peer).load(std::memory_order_acquire);
    if (word == word_ || word >> kNumberShift != calls_) continue;
    const std::string text = text_of(comm_->rank(), word_) + ", " + text_of(peer, word) +
                             "; all ranks must make the same calls in one order";
    return comm_->fail(BLINK_INVALID, Site{BLINK_WAITS_MESSAGE, peer}, peer, text.c_str());
  }
  return BLINK_OK;
}

}  // namespace blink::mpi
