#include "one_way.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "kernels.h"

namespace blink::mpi {

std::uint64_t OneWay::bytes_needed(int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  return n * n * sizeof(Ring);
}

void OneWay::open(blink_comm* comm, void* memory) {
  comm_ = comm;
  const int size = comm->size(), rank = comm->rank();
  auto* const rings = static_cast<Ring*>(memory);
  to_.resize(static_cast<std::size_t>(size));
  from_.resize(static_cast<std::size_t>(size));
  for (int peer = 0; peer < size; ++peer) {
    to_[static_cast<std::size_t>(peer)].ring = rings + rank * size + peer;
    from_[static_cast<std::size_t>(peer)].ring = rings + peer * size + rank;
  }
}

int OneWay::begin(std::uint64_t word, std::int64_t timeout_us) {
  call_ = word;
  waits_ = Site{};
  comm_->start_clock(timeout_us);
  return comm_->ended();
}

template <class Ready>
int OneWay::wait(Ready ready, std::int32_t waits, int peer) {
  waits_ = Site{waits, peer};
  const int code = comm_->wait(ready, waits_);
  if (code == BLINK_OK) waits_ = Site{};
  return code;
}

int OneWay::awaited() const {
  if (waits_.peer < 0) return -1;
  const auto peer = static_cast<std::size_t>(waits_.peer);
  if (waits_.waits == BLINK_WAITS_SLOT) return waits_.peer;  // who reads gives back before it goes on
  const End& from = from_[peer];
  const bool there = from.ring->slot[from.messages % kSlots].number.load(std::memory_order_acquire) == from.messages + 1;
  return there ? -1 : waits_.peer;
}

int OneWay::move(std::vector<Part>& parts) {
  int all = BLINK_OK;
  for (Part& part : parts) {
    const int code = move(part);
    if (code != BLINK_OK && code != BLINK_AGAIN) return code;
    if (code != BLINK_OK) all = code;
  }
  return all;
}

int OneWay::finish(std::vector<Part>& parts) {
  for (;;) {
    const Part* left = nullptr;
    bool moved = false;
    for (Part& part : parts) {
      if (part.done >= part.bytes) continue;
      left = &part;
      if (!is_ready(part)) continue;
      moved = true;
      const int code = part.from != nullptr ? send_next(part) : receive_next(part);
      if (code != BLINK_OK) return code;
    }
    if (left == nullptr) return BLINK_OK;
    if (moved) continue;
    const auto any = [&] {
      return std::any_of(parts.begin(), parts.end(), [&](const Part& part) { return part.done < part.bytes && is_ready(part); });
    };
    const int code = wait(any, left->from != nullptr ? BLINK_WAITS_SLOT : BLINK_WAITS_MESSAGE, left->peer);
    if (code != BLINK_OK) return code;
  }
}

int OneWay::send(Part& part) {
  while (part.done < part.bytes) {
    if (const int code = send_next(part)) return code;
  }
  return BLINK_OK;
}

int OneWay::send_next(Part& part) {
  const int peer = part.peer;
  const std::int64_t rest = part.bytes - part.done, bytes = std::min(rest, kChunkBytes);
  const unsigned char* const data = part.from + part.done;
  End& to = to_[static_cast<std::size_t>(peer)];
  const bool chunk = bytes > kPayloadBytes;
  if (const int code = await_room(to, peer, chunk)) return code;
  Slot& slot = to.ring->slot[to.messages % kSlots];
  slot.call = call_;
  slot.bytes = rest;
  if (chunk) {
    blink::copy_bytes(to.ring->chunk[to.chunks++ % kChunks], data, static_cast<std::size_t>(bytes));
  } else {
    std::memcpy(bytes <= kTinyBytes ? slot.tiny : slot.payload, data, static_cast<std::size_t>(bytes));
  }
  slot.number.store(++to.messages, std::memory_order_release);
  part.done += bytes;
  // Without a fence, which would wait until the other core has given its lines up, two thirds of a small call. A peer that
  // falls asleep at this very moment may not be seen; under an idle function none sleeps for longer than a millisecond.
  comm_->wake_unfenced(peer);
  return BLINK_OK;
}

int OneWay::await_room(End& to, int peer, bool chunk) {
  if (!has_slot(to)) {
    if (const int code = wait([&] { return has_slot(to); }, BLINK_WAITS_SLOT, peer)) return code;
  }
  return !chunk || has_chunk(to) ? BLINK_OK : wait([&] { return has_chunk(to); }, BLINK_WAITS_SLOT, peer);
}

bool OneWay::has_slot(End& to) const {
  return to.messages - to.received < kSlots ||
         to.messages - (to.received = to.ring->received.value.load(std::memory_order_acquire)) < kSlots;
}

bool OneWay::has_chunk(End& to) const {
  return to.chunks - to.emptied < kChunks ||
         to.chunks - (to.emptied = to.ring->emptied.value.load(std::memory_order_acquire)) < kChunks;
}

bool OneWay::is_ready(const Part& part) {
  const auto peer = static_cast<std::size_t>(part.peer);
  if (part.from != nullptr) return has_slot(to_[peer]) && (part.bytes - part.done <= kPayloadBytes || has_chunk(to_[peer]));
  const End& from = from_[peer];
  return from.ring->slot[from.messages % kSlots].number.load(std::memory_order_acquire) == from.messages + 1;
}

int OneWay::receive(Part& part) {
  while (part.done < part.bytes) {
    if (const int code = receive_next(part)) return code;
  }
  return BLINK_OK;
}

int OneWay::receive_next(Part& part) {
  const std::int64_t rest = part.bytes - part.done, bytes = std::min(rest, kChunkBytes);
  int code = BLINK_OK;
  const unsigned char* at = await_part(part.peer, rest, &code);
  if (at == nullptr) return code;
  if (part.past_caches) blink::copy_past_caches(part.to + part.done, at, static_cast<std::size_t>(bytes));
  else if (bytes > kPayloadBytes) blink::copy_bytes(part.to + part.done, at, static_cast<std::size_t>(bytes));
  else std::memcpy(part.to + part.done, at, static_cast<std::size_t>(bytes));
  part.done += bytes;
  release_part(part.peer, bytes > kPayloadBytes);
  return BLINK_OK;
}

const void* OneWay::look(int peer, std::int64_t bytes, int* code) { return await_part(peer, bytes, code); }
void OneWay::release(int peer, std::int64_t bytes) { release_part(peer, bytes > kPayloadBytes); }

const unsigned char* OneWay::await_part(int peer, std::int64_t rest, int* code) {
  const End& from = from_[static_cast<std::size_t>(peer)];
  const Slot& slot = from.ring->slot[from.messages % kSlots];
  const auto there = [&] { return slot.number.load(std::memory_order_acquire) == from.messages + 1; };
  if (!there()) {
    *code = wait(there, BLINK_WAITS_MESSAGE, peer);
    if (*code != BLINK_OK) return nullptr;
  }
  if (slot.call != call_ || slot.bytes != rest) {
    char text[160];
    std::snprintf(text, sizeof text, "rank %d has sent %lld bytes%s, rank %d waits for %lld", peer,
                  static_cast<long long>(slot.bytes), slot.call == call_ ? "" : " in another call", comm_->rank(),
                  static_cast<long long>(rest));
    *code = fail(peer, text);
    return nullptr;
  }
  if (rest > kPayloadBytes) return from.ring->chunk[from.chunks % kChunks];
  return rest <= kTinyBytes ? slot.tiny : slot.payload;
}

void OneWay::release_part(int peer, bool chunk) {
  End& from = from_[static_cast<std::size_t>(peer)];
  ++from.messages;
  if (chunk) from.ring->emptied.value.store(++from.chunks, std::memory_order_release);
  const bool returns = from.messages % kReturned == 0;
  if (returns) from.ring->received.value.store(from.messages, std::memory_order_release);
  if (returns || chunk) comm_->wake_unfenced(peer);
}

int OneWay::fail(int peer, const char* text) { return comm_->fail(BLINK_INVALID, Site{BLINK_WAITS_MESSAGE, peer}, peer, text); }

}  // namespace blink::mpi
