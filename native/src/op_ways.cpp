// Which way does a message go, and where does it lie? Through a ring; read in its sender's buffer; written into its
// receiver's; or by turns the one and the other. Decided alike on both of its ends: by the rows, and by what both lend.
#include "op.h"

using blink::kNowhere;
using blink::Reader;
using blink::Receive;
using blink::Ring;
using blink::Role;

// What others are told of a buffer of this rank.
std::int64_t blink_op::lend(const void* buffer, std::int64_t bytes, bool privately) const {
  if (inline_messages_ || buffer == nullptr || bytes == 0) return kNowhere;
  const std::int64_t offset = comm_.heap_offset(buffer, bytes);
  return offset == kNowhere && privately ? blink::private_place(buffer) : offset;
}

bool blink_op::exports(const Ring& ring) const {
  if (ring.direct == blink::kDirectNo) return false;
  const std::int64_t mine = ring.direct == blink::kDirectInput ? my_input_ : my_output_;
  return mine != kNowhere &&
         (ring.halved == 0 || place_of_output(readers_[static_cast<std::size_t>(ring.first_reader)]) != kNowhere);
}

bool blink_op::pushes(const Ring& ring, const Reader& reader, std::int64_t chunk) const {
  if (reader.push_offset == kNowhere) return false;
  return ring.halved != 0 ? chunk % 2 != 0 && exports(ring) : blink::is_shared(place_of_output(reader));
}

std::int64_t blink_op::place_of_output(const Reader& reader) const {
  return comm_.entry(static_cast<int>(reader.rank)).output.at.load(std::memory_order_relaxed);
}

const blink::Lent& blink_op::lent(const Receive& r) const {
  const blink::Entry& theirs = comm_.entry(static_cast<int>(r.rank));
  return r.direct == blink::kDirectInput ? theirs.input : theirs.output;
}

bool blink_op::halves(const Receive& r) const {
  return my_output_ != kNowhere && lent(r).at.load(std::memory_order_relaxed) != kNowhere;
}

bool blink_op::is_pushed(const Receive& r, std::int64_t chunk) const {
  return r.halved != 0 ? chunk % 2 != 0 && halves(r) : r.pushed != 0 && blink::is_shared(my_output_);
}

bool blink_op::reads_direct(const Receive& r, std::int64_t chunk) const {
  if (r.direct == blink::kDirectNo) return false;
  if (r.halved != 0) return chunk % 2 == 0 && halves(r);
  return lent(r).at.load(std::memory_order_relaxed) != kNowhere;
}

bool blink_op::reads_private(const Receive& r, std::int64_t chunk) const {
  return reads_direct(r, chunk) && blink::is_private(lent(r).at.load(std::memory_order_relaxed));
}

const void* blink_op::message(const Receive& r, const Chunk& chunk) const {
  const int peer = static_cast<int>(r.rank);
  if (reads_direct(r, chunk.index)) {
    return comm_.borrowed(peer, lent(r), r.direct_offset + static_cast<std::int64_t>(chunk.bytes_before), chunk.bytes);
  }
  const auto slot = static_cast<std::int64_t>(received_[static_cast<std::size_t>(r.queue)] % static_cast<std::uint64_t>(r.slots));
  return area_of(r.lodged, peer) + r.staging + slot * r.stride;
}

unsigned char* blink_op::area_of(std::int64_t lodged, int sender) const {
  return comm_.segment().staging(comm_.bank(), lodged == 0 ? sender : static_cast<int>(lodged - 1)) + shift();
}

// Everywhere the value of a firing has to be written. A value that lies there already is not copied onto itself.
int blink_op::collect_targets(const Role& role, const Chunk& chunk) {
  targets_.clear();
  gifts_.clear();
  writes_others_ = false;
  if (role.target != kNowhere) {
    void* place = output_ + role.target + chunk.bytes_before;
    if (sources_.size() != 1 || sources_[0] != place || role.divisor > 1 || scaled_) targets_.push_back(place);
  }
  for (std::int64_t i = 0; i < role.sends; ++i) {
    const auto number = static_cast<std::size_t>(sends_[static_cast<std::size_t>(role.first_send + i)]);
    const Ring& ring = rings_[number];
    bool staged = false;
    for (std::int64_t j = 0; j < ring.readers; ++j) {
      const Reader& reader = readers_[static_cast<std::size_t>(ring.first_reader + j)];
      if (pushes(ring, reader, chunk.index)) {
        if (!collect_pushed(reader, chunk)) return not_lent(role, static_cast<int>(reader.rank), chunk.index);
      } else {
        staged = true;
      }
    }
    if (staged && !exports(ring)) {
      const auto slot = static_cast<std::int64_t>(sent_[number] % static_cast<std::uint64_t>(ring.slots));
      targets_.push_back(area_of(ring.lodged, comm_.rank()) + ring.staging + slot * ring.stride);
    }
  }
  return BLINK_OK;
}

// Where a message has to be written in its reader's output; false if that is outside.
bool blink_op::collect_pushed(const Reader& reader, const Chunk& chunk) {
  const int peer = static_cast<int>(reader.rank);
  const blink::Lent& theirs = comm_.entry(peer).output;
  const std::int64_t at = reader.push_offset + static_cast<std::int64_t>(chunk.bytes_before);
  writes_others_ = true;
  if (blink::is_private(place_of_output(reader))) {
    gifts_.push_back({peer, blink_comm::private_address(theirs, at, chunk.bytes)});
    return gifts_.back().into != 0;
  }
  targets_.push_back(comm_.borrowed(peer, theirs, at, chunk.bytes));
  return targets_.back() != nullptr;
}

int blink_op::not_lent(const Role& role, int peer, std::int64_t chunk) {
  return comm_.fail(BLINK_INVALID, site(BLINK_WAITS_NOT, role, peer, chunk), peer,
                    "a message lies outside the buffer that the peer lends, or its shared memory is not mapped here");
}
