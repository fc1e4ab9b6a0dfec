#include "routes.h"

namespace blink {

std::int64_t Routes::place_to_lend(const void* buffer, std::int64_t bytes, bool privately) const {
  if (tables_.numbers.inline_messages != 0 || buffer == nullptr || bytes == 0) return kNowhere;
  const std::int64_t offset = comm_.heap_offset(buffer, bytes);
  return offset == kNowhere && privately ? private_place(buffer) : offset;
}

bool Routes::exports(const blink_ring& ring) const {
  if (ring.direct_read == BLINK_READ_NONE) return false;
  const std::int64_t mine = ring.direct_read == BLINK_READ_INPUT ? my_input_ : my_output_;
  return mine != kNowhere && (ring.split == 0 || place_of_output(*tables_.readers_of(ring).begin()) != kNowhere);
}

bool Routes::writes(const blink_ring& ring, const blink_reader& reader, std::int64_t chunk) const {
  if (reader.write_offset == kNowhere) return false;
  return ring.split != 0 ? chunk % 2 != 0 && exports(ring) : is_shared(place_of_output(reader));
}

std::int64_t Routes::place_of_output(const blink_reader& reader) const {
  return comm_.entry(static_cast<int>(reader.rank)).output.at.load(std::memory_order_relaxed);
}

const Lent& Routes::lent(const blink_receive& receive) const {
  const Entry& theirs = comm_.entry(static_cast<int>(receive.rank));
  return receive.direct_read == BLINK_READ_INPUT ? theirs.input : theirs.output;
}

bool Routes::splits(const blink_receive& receive) const {
  return my_output_ != kNowhere && lent(receive).at.load(std::memory_order_relaxed) != kNowhere;
}

bool Routes::is_written(const blink_receive& receive, std::int64_t chunk) const {
  if (receive.split != 0) return chunk % 2 != 0 && splits(receive);
  return receive.direct_write != 0 && is_shared(my_output_);
}

bool Routes::reads_direct(const blink_receive& receive, std::int64_t chunk) const {
  if (receive.direct_read == BLINK_READ_NONE) return false;
  if (receive.split != 0) return chunk % 2 == 0 && splits(receive);
  return lent(receive).at.load(std::memory_order_relaxed) != kNowhere;
}

bool Routes::reads_private(const blink_receive& receive, std::int64_t chunk) const {
  return reads_direct(receive, chunk) && is_private(lent(receive).at.load(std::memory_order_relaxed));
}

const void* Routes::message(const blink_receive& receive, const Chunk& chunk, std::uint64_t count) const {
  const int peer = static_cast<int>(receive.rank);
  if (!reads_direct(receive, chunk.index)) {
    return area(receive.reply_to, peer) + receive.staging + offset(count, receive.slots, receive.stride);
  }
  const std::int64_t at = receive.direct_offset + static_cast<std::int64_t>(chunk.bytes_before);
  return comm_.borrowed(peer, lent(receive), at, chunk.bytes);
}

}  // namespace blink
