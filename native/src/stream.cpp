// Point to point: one ring of bytes per ordered pair of ranks. Python does the framing and the matching.
//
// These calls may run on other threads than the collectives, one thread per direction and peer.
#include <algorithm>
#include <cstring>

#include "comm.h"

namespace {

// The first `bytes` of a ring from position `at`, in one or two pieces: calls piece(offset in the ring, offset, bytes).
template <class Piece>
void in_pieces(std::uint64_t at, std::uint64_t bytes, std::uint64_t size, Piece piece) {
  const std::uint64_t start = at % size, first = std::min(bytes, size - start);
  piece(start, std::uint64_t{0}, first);
  if (bytes > first) piece(std::uint64_t{0}, first, bytes - first);
}

// Result of a stream between hosts: the bytes moved, or a code below 0.
template <class Move>
std::int64_t remote(blink_comm& comm, int peer, Move move) {
  if (comm.has_failed()) return -comm.stream_end(peer);
  const std::int64_t moved = move([&comm] { return comm.has_failed(); });
  if (moved == blink::RemoteStreams::kLost || (moved == 0 && comm.has_failed())) return -comm.stream_end(peer);
  return moved;
}

bool valid(const blink_comm* comm, std::int32_t peer, std::int64_t bytes) {
  return comm != nullptr && peer >= 0 && peer < comm->size() && peer != comm->rank() && bytes > 0;
}

}  // namespace

extern "C" int64_t blink_stream_write(blink_comm* comm, int32_t peer, const void* data, int64_t bytes, int large,
                                      int64_t wait_us) {
  if (!valid(comm, peer, bytes)) return -BLINK_INVALID;
  if (comm->is_remote(peer)) {
    return remote(*comm, peer, [&](const auto& ended) {
      return comm->streams().write(peer, data, static_cast<std::size_t>(bytes), large != 0, wait_us, ended);
    });
  }
  const blink::Segment& segment = comm->segment();
  const auto size = static_cast<std::uint64_t>(segment.shape().stream_bytes);
  blink::Stream& stream = segment.stream(comm->rank(), peer);
  if (comm->has_left(peer)) return -comm->lost_to_stream(peer);  // even if there is room, nobody will read the data
  const std::uint64_t written = stream.written.value.load(std::memory_order_relaxed);
  const auto room = [&] { return size - (written - stream.read.value.load(std::memory_order_acquire)); };
  if (const int code = comm->wait_stream([&] { return room() > 0; }, peer, wait_us)) return -code;
  // Writes a quarter of the ring at a time, so that the reader starts while the rest is written.
  const std::uint64_t moved =
      std::min({static_cast<std::uint64_t>(bytes), room(), std::max<std::uint64_t>(1, size / 4)});
  if (moved == 0) return 0;
  unsigned char* ring = segment.stream_data(comm->rank(), peer);
  const auto* from = static_cast<const unsigned char*>(data);
  in_pieces(written, moved, size, [&](std::uint64_t at, std::uint64_t offset, std::uint64_t part) {
    std::memcpy(ring + at, from + offset, part);
  });
  stream.written.value.store(written + moved, std::memory_order_release);
  comm->wake(peer);
  return static_cast<std::int64_t>(moved);
}

extern "C" int64_t blink_stream_flush(blink_comm* comm, int32_t peer, int64_t wait_us) {
  if (!valid(comm, peer, 1)) return -BLINK_INVALID;
  if (!comm->is_remote(peer)) return 1;
  return remote(*comm, peer, [&](const auto& ended) { return comm->streams().flush(peer, wait_us, ended); });
}

extern "C" int blink_stream_route(blink_comm* comm, int32_t peer, double share, int32_t hops, const int32_t* rails,
                                  const int32_t* ranks) {
  if (!valid(comm, peer, 1) || !comm->is_remote(peer)) return BLINK_INVALID;
  std::vector<blink::RemoteStreams::Hop> route;
  for (std::int32_t hop = 0; hop < hops; ++hop) {
    route.push_back({rails[hop], ranks[hop]});
  }
  return comm->streams().add_route(peer, share, route) ? BLINK_OK : BLINK_INVALID;
}

extern "C" int blink_stream_serve(blink_comm* comm, int64_t wait_us) {
  comm->streams().serve(wait_us, [comm] { return comm->has_failed(); });
  return comm->has_failed() ? 0 : 1;
}

extern "C" void blink_stream_show(blink_comm* comm, int32_t peer, int64_t tag, int64_t since_us) {
  comm->show_stream(peer, tag, since_us);
}

extern "C" int64_t blink_stream_read(blink_comm* comm, int32_t peer, void* data, int64_t bytes, int64_t wait_us) {
  if (!valid(comm, peer, bytes)) return -BLINK_INVALID;
  if (comm->is_remote(peer)) {
    return remote(*comm, peer, [&](const auto& ended) {
      return comm->streams().read(peer, data, static_cast<std::size_t>(bytes), wait_us, ended);
    });
  }
  const blink::Segment& segment = comm->segment();
  const auto size = static_cast<std::uint64_t>(segment.shape().stream_bytes);
  blink::Stream& stream = segment.stream(peer, comm->rank());
  const std::uint64_t read = stream.read.value.load(std::memory_order_relaxed);
  const auto there = [&] { return stream.written.value.load(std::memory_order_acquire) - read; };
  if (const int code = comm->wait_stream([&] { return there() > 0; }, peer, wait_us)) return -code;
  const std::uint64_t moved = std::min(static_cast<std::uint64_t>(bytes), there());
  if (moved == 0) return 0;
  const unsigned char* ring = segment.stream_data(peer, comm->rank());
  auto* to = static_cast<unsigned char*>(data);
  in_pieces(read, moved, size, [&](std::uint64_t at, std::uint64_t offset, std::uint64_t part) {
    std::memcpy(to + offset, ring + at, part);
  });
  stream.read.value.store(read + moved, std::memory_order_release);
  comm->wake(peer);
  return static_cast<std::int64_t>(moved);
}
