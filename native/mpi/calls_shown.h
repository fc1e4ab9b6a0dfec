// Where every rank of a communicator shows which call it is in.
//
// The host engine tells calls apart that it has itself. It does not see those that go one way (one_way.h), of which ranks
// may be many apart: a rank that waits looks here for others that can never come.
#pragma once

#include <atomic>
#include <cstdint>

#include "comm.h"

namespace blink::mpi {

class CallsShown {
 public:
  // Of fresh zeroed memory, which all ranks map.
  static std::uint64_t bytes_needed(int ranks) { return static_cast<std::uint64_t>(ranks) * kLineBytes; }
  void open(blink_comm* comm, void* memory);

  // This rank begins its next call; its word is the same on all ranks: the number, the collective and the root.
  std::uint64_t begin(std::int32_t collective, std::int32_t root) {
    word_ = ++calls_ << kNumberShift | static_cast<std::uint64_t>(collective & 0xff) << 16 | static_cast<std::uint64_t>(root & 0xffff);
    call_of(comm_->rank()).store(word_, std::memory_order_release);
    return word_;
  }
  // In waits: 0, or the code of an error which is every rank's, since another rank is in another call.
  int check();
  // Whether `peer` has begun a later call.
  bool is_past(int peer) const { return call_of(peer).load(std::memory_order_acquire) >> kNumberShift > calls_; }

 private:
  static constexpr int kNumberShift = 24;
  std::atomic<std::uint64_t>& call_of(int rank) const;

  blink_comm* comm_ = nullptr;
  unsigned char* memory_ = nullptr;
  std::uint64_t calls_ = 0, word_ = 0;
};

}  // namespace blink::mpi
