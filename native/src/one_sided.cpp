// One-sided access to shared tensors: where a peer's are, and words that say that something was stored there.
//
// As streams, these calls may run on other threads than the collectives.
#include <atomic>

#include "comm.h"

namespace {

bool valid(const blink_comm* comm, std::int32_t peer, const std::uint64_t* word) {
  return comm != nullptr && peer >= 0 && peer < comm->size() && word != nullptr &&
         reinterpret_cast<std::uintptr_t>(word) % alignof(std::uint64_t) == 0;
}

}  // namespace

extern "C" void* blink_heap_at(blink_comm* comm, int32_t rank, int64_t offset, int64_t bytes) {
  if (comm == nullptr || rank < 0 || rank >= comm->size() || bytes < 0) return nullptr;
  blink::Lent whole{};
  whole.at.store(offset, std::memory_order_relaxed);
  whole.bytes.store(bytes, std::memory_order_relaxed);
  return comm->borrowed(rank, whole, 0, static_cast<std::size_t>(bytes));
}

extern "C" int blink_signal(blink_comm* comm, int32_t peer, uint64_t* word) {
  if (!valid(comm, peer, word)) return BLINK_INVALID;
  if (peer != comm->rank() && comm->has_left(peer)) return comm->lost_to_stream(peer);
  if (const int code = comm->wait_stream([] { return true; }, peer, 0)) return code;  // the communicator has ended
  reinterpret_cast<std::atomic<std::uint64_t>*>(word)->fetch_add(1, std::memory_order_release);
  comm->wake(peer);
  return BLINK_OK;
}

extern "C" int blink_await_signal(blink_comm* comm, int32_t peer, const uint64_t* word, uint64_t value,
                                  int64_t wait_us) {
  if (!valid(comm, peer, word)) return -BLINK_INVALID;
  const auto* const count = reinterpret_cast<const std::atomic<std::uint64_t>*>(word);
  const auto there = [&] { return count->load(std::memory_order_acquire) >= value; };
  if (there()) return 1;
  if (const int code = comm->wait_stream(there, peer, wait_us)) return -code;
  return there() ? 1 : 0;
}
