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

int OneWay::begin(std::int32_t collective, std::int32_t root, std::int64_t timeout_us) {
  call_ = ++calls_ << 24 | static_cast<std::uint64_t>(collective & 0xff) << 16 | static_cast<std::uint64_t>(root & 0xffff);
  comm_->start_clock(timeout_us);
  return comm_->ended();
}

int OneWay::send(int peer, const void* data, std::int64_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  for (std::int64_t sent = 0; sent < bytes; sent += kChunkBytes) {
    const std::int64_t rest = bytes - sent;
    if (const int code = send_part(peer, from + sent, std::min(rest, kChunkBytes), rest)) return code;
  }
  return BLINK_OK;
}

int OneWay::send_part(int peer, const unsigned char* data, std::int64_t bytes, std::int64_t rest) {
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
  comm_->wake(peer);
  return BLINK_OK;
}

int OneWay::await_room(End& to, int peer, bool chunk) {
  const Site site{BLINK_WAITS_SLOT, peer};
  const auto has_slot = [&] {
    return to.messages - to.received < kSlots ||
           to.messages - (to.received = to.ring->received.value.load(std::memory_order_acquire)) < kSlots;
  };
  const auto has_chunk = [&] {
    return to.chunks - to.emptied < kChunks ||
           to.chunks - (to.emptied = to.ring->emptied.value.load(std::memory_order_acquire)) < kChunks;
  };
  if (!has_slot()) {
    if (const int code = comm_->wait(has_slot, site)) return code;
  }
  return !chunk || has_chunk() ? BLINK_OK : comm_->wait(has_chunk, site);
}

int OneWay::receive(int peer, void* data, std::int64_t bytes) {
  auto* to = static_cast<unsigned char*>(data);
  for (std::int64_t got = 0; got < bytes; got += kChunkBytes) {
    const std::int64_t rest = bytes - got, part = std::min(rest, kChunkBytes);
    int code = BLINK_OK;
    const unsigned char* at = await_part(peer, rest, &code);
    if (at == nullptr) return code;
    if (part > kPayloadBytes) blink::copy_bytes(to + got, at, static_cast<std::size_t>(part));
    else std::memcpy(to + got, at, static_cast<std::size_t>(part));
    release_part(peer, part > kPayloadBytes);
  }
  return BLINK_OK;
}

const void* OneWay::look(int peer, std::int64_t bytes, int* code) { return await_part(peer, bytes, code); }
void OneWay::release(int peer, std::int64_t bytes) { release_part(peer, bytes > kPayloadBytes); }

const unsigned char* OneWay::await_part(int peer, std::int64_t rest, int* code) {
  const End& from = from_[static_cast<std::size_t>(peer)];
  const Slot& slot = from.ring->slot[from.messages % kSlots];
  const auto there = [&] { return slot.number.load(std::memory_order_acquire) == from.messages + 1; };
  if (!there()) {
    *code = comm_->wait(there, Site{BLINK_WAITS_MESSAGE, peer});
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
  if (returns || chunk) comm_->wake(peer);
}

int OneWay::fail(int peer, const char* text) { return comm_->fail(BLINK_INVALID, Site{BLINK_WAITS_MESSAGE, peer}, peer, text); }

}  // namespace blink::mpi
