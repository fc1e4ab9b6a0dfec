// Are tables that Python gives us right enough to be followed? Copies them, and looks at every number in them.
#include <algorithm>
#include <cstring>

#include "op.h"

using blink::Block;
using blink::Direct;
using blink::kNowhere;
using blink::kPayloadBytes;
using blink::Reader;
using blink::Receive;
using blink::Ring;
using blink::Role;

namespace {

template <class Row>
bool copy_rows(std::vector<Row>& rows, const std::int64_t* table, std::int64_t count) {
  if (count < 0 || count > (1 << 24) || (count > 0 && table == nullptr)) return false;
  rows.resize(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(static_cast<void*>(rows.data()), table, rows.size() * sizeof(Row));
  return true;
}

// Sizes in tables are below these, so that no product or sum of theirs overflows.
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 46;
constexpr std::int64_t kMostTicks = std::int64_t{1} << 20;  // of look-ahead: all of them are walked through
constexpr std::int64_t kMostDivisor = std::int64_t{1} << 30;

// Whether `count` things from `first` on are among `size`.
bool within(std::int64_t first, std::int64_t count, std::int64_t size) {
  return first >= 0 && count >= 0 && count <= size && first <= size - count;
}

template <class Row>
bool within(std::int64_t first, std::int64_t count, const std::vector<Row>& rows) {
  return within(first, count, static_cast<std::int64_t>(rows.size()));
}

// Whether `bytes` at `place` lie in a buffer of `size`, on a whole item; kNowhere: there are none.
bool placed(std::int64_t place, std::int64_t bytes, std::int64_t size, std::int64_t item) {
  return place == kNowhere || (within(place, bytes, size) && place % item == 0);
}

}  // namespace

blink_op* blink_op::create(blink_comm& comm, const blink_tables& tables) {
  auto* op = new blink_op(comm);
  if (op->fill(tables)) return op;
  delete op;
  return nullptr;
}

bool blink_op::fill(const blink_tables& t) {
  static_assert(sizeof(Role) == 14 * 8 && sizeof(Receive) == 12 * 8 && sizeof(Ring) == 10 * 8 && sizeof(Reader) == 24,
                "rows are int64s");
  if (!copy_rows(roles_, t.roles, t.role_count) || !copy_rows(receives_, t.receives, t.receive_count) ||
      !copy_rows(sends_, t.sends, t.send_count) || !copy_rows(rings_, t.rings, t.ring_count) ||
      !copy_rows(readers_, t.readers, t.reader_count) || t.queue_count < 0 || t.queue_count > (1 << 24)) {
    return false;
  }
  signature_ = t.signature;
  what_ = t.what;
  count_ = t.count;
  kernel_ = blink::find_kernel(static_cast<blink::DType>(t.dtype), static_cast<blink::Op>(t.op));
  chunk_elements_ = std::min(t.chunk_elements, kMostElements);
  shift_bytes_ = t.shift_bytes;
  shifts_ = t.shifts;
  inline_messages_ = t.inline_messages != 0;
  direct_in_place_ = t.direct_in_place != 0;
  push_in_place_ = t.push_in_place != 0;
  input_bytes_ = t.input_bytes;
  output_bytes_ = t.output_bytes;
  received_.assign(static_cast<std::size_t>(t.queue_count), 0);
  sent_.assign(rings_.size(), 0);
  if (!sensible()) return false;
  const bool crosses = t.cross_memory != 0;
  const auto read_there = [this](Direct where) {
    return std::any_of(rings_.begin(), rings_.end(), [=](const Ring& r) { return r.direct == where; });
  };
  const bool given = std::any_of(receives_.begin(), receives_.end(), [](const Receive& r) { return r.halved != 0; });
  lends_input_ = crosses && read_there(blink::kDirectInput);
  lends_output_ = crosses && (read_there(blink::kDirectOutput) || given);
  first_tick_ = last_tick_ = 0;
  bool any = false;
  for (const Role& role : roles_) {
    if (role.chunks == 0) continue;
    first_tick_ = any ? std::min(first_tick_, role.offset) : role.offset;
    last_tick_ = any ? std::max(last_tick_, role.offset + role.chunks) : role.offset + role.chunks;
    any = true;
  }
  return true;
}

// Wrong tables must not become wild accesses: every index and every place is looked at once. What peers say only when
// they call, where their shared buffers are, is looked at then.
bool blink_op::sensible() const {
  if (kernel_ == nullptr || chunk_elements_ < 1 || !within(0, input_bytes_, kMostBytes) ||
      !within(0, output_bytes_, kMostBytes) || !within(0, shift_bytes_, area()) || shift_bytes_ % area_unit() != 0 ||
      shifts_ < 1 || (shift_bytes_ > 0 && shifts_ > area() / shift_bytes_) || (shift_bytes_ == 0 && shifts_ > 1)) {
    return false;
  }
  const auto right = [this](const auto& row) { return sensible(row); };
  return std::all_of(roles_.begin(), roles_.end(), right) && std::all_of(rings_.begin(), rings_.end(), right) &&
         std::all_of(receives_.begin(), receives_.end(), right) &&
         std::all_of(readers_.begin(), readers_.end(), right) &&
         std::all_of(sends_.begin(), sends_.end(), [this](std::int64_t ring) { return within(ring, 1, rings_); }) &&
         std::all_of(roles_.begin(), roles_.end(), [this](const Role& role) { return has_room(role); }) && countable();
}

bool blink_op::sensible(const Role& r) const {
  if (!within(0, r.length, kMostElements) || !within(r.offset, 0, kMostTicks)) return false;
  return r.chunks == (r.length + chunk_elements_ - 1) / chunk_elements_ && !(inline_messages_ && r.chunks > 1) &&
         placed(r.source, r.length * item_bytes(), input_bytes_, item_bytes()) &&
         placed(r.target, r.length * item_bytes(), output_bytes_, item_bytes()) && r.divisor >= 1 &&
         r.divisor <= kMostDivisor && within(r.first_receive, r.receives, receives_) &&
         within(r.first_send, r.sends, sends_) &&
         within(r.turn, 0, r.receives) && !(r.source == kNowhere && r.receives == 0) && halves_well(r);
}

// Messages of which the sender moves half are nothing but its input.
bool blink_op::halves_well(const Role& role) const {
  for (std::int64_t i = 0; i < role.sends; ++i) {
    const std::int64_t number = sends_[static_cast<std::size_t>(role.first_send + i)];
    if (!within(number, 1, rings_)) return false;
    const bool halved = rings_[static_cast<std::size_t>(number)].halved != 0;
    if (halved && (role.receives > 0 || role.source == kNowhere)) return false;
  }
  return true;
}


bool blink_op::sensible(const Receive& r) const {
  return is_peer(r.rank) && is_line(r.line) && is_line(r.ack_line) && is_ring(r.staging, r.stride, r.slots) &&
         within(r.queue, 1, received_) && within(r.direct, 0, blink::kDirectOutput) &&
         r.direct_offset >= 0 && placed(r.direct_offset, 0, kMostBytes, item_bytes()) && within(r.pushed, 0, 1) &&
         within(r.lodged, 0, comm_.size()) && within(r.halved, 0, 1) &&
         !(r.halved != 0 && (r.pushed == 0 || r.direct != blink::kDirectInput));
}

bool blink_op::sensible(const Ring& r) const {
  return is_line(r.line) && is_ring(r.staging, r.stride, r.slots) && within(r.first_reader, r.readers, readers_) &&
         within(r.direct, 0, blink::kDirectOutput) && within(r.lodged, 0, comm_.size()) && within(r.halved, 0, 1) &&
         !(r.halved != 0 &&
           (r.direct != blink::kDirectInput || r.readers != 1 || readers_[static_cast<std::size_t>(r.first_reader)].push_offset == kNowhere));
}

bool blink_op::sensible(const Reader& r) const {
  return is_peer(r.rank) && is_line(r.ack_line) && placed(r.push_offset, 0, kMostBytes, item_bytes());
}

// What a rank and bank has for messages of this kind, and what it is cut into.
std::int64_t blink_op::area() const {
  const blink_shape& shape = comm_.segment().shape();
  return inline_messages_ ? shape.inline_bytes : shape.staging_bytes;
}

std::int64_t blink_op::area_unit() const {
  return static_cast<std::int64_t>(inline_messages_ ? blink::kBlockBytes : blink::kLineBytes);
}

bool blink_op::is_line(std::int64_t line) const { return within(line, 1, comm_.segment().shape().lines); }

bool blink_op::is_peer(std::int64_t rank) const { return within(rank, 1, comm_.size()) && rank != comm_.rank(); }

bool blink_op::is_ring(std::int64_t at, std::int64_t stride, std::int64_t slots) const {
  const std::int64_t room = area() - shift_bytes_ * (shifts_ - 1);
  return slots >= 1 && slots <= blink::kMostMessages && within(at, 0, room) && within(stride, 0, room) &&
         at % area_unit() == 0 && stride % area_unit() == 0 && stride <= (room - at) / slots;
}

// Whether a role's messages fit into all their rings.
bool blink_op::has_room(const Role& role) const {
  const std::int64_t bytes = std::min(role.length, chunk_elements_) * item_bytes();
  constexpr auto kPayload = static_cast<std::int64_t>(kPayloadBytes);
  const std::int64_t needed =
      inline_messages_ ? (bytes + kPayload - 1) / kPayload * static_cast<std::int64_t>(sizeof(Block)) : bytes;
  for (std::int64_t i = 0; i < role.receives; ++i) {
    if (needed > receives_[static_cast<std::size_t>(role.first_receive + i)].stride) return false;
  }
  for (std::int64_t i = 0; i < role.sends; ++i) {
    const auto ring = static_cast<std::size_t>(sends_[static_cast<std::size_t>(role.first_send + i)]);
    if (needed > rings_[ring].stride) return false;
  }
  return true;
}

// Whether every queue's messages of one call can be counted in a control word.
bool blink_op::countable() const {
  std::vector<std::int64_t> received(received_.size(), 0), sent(sent_.size(), 0);
  for (const Role& role : roles_) {
    for (std::int64_t i = 0; i < role.receives; ++i) {
      const Receive& receive = receives_[static_cast<std::size_t>(role.first_receive + i)];
      auto& count = received[static_cast<std::size_t>(receive.queue)];
      if ((count += role.chunks) > blink::kMostMessages) return false;
    }
    for (std::int64_t i = 0; i < role.sends; ++i) {
      auto& count = sent[static_cast<std::size_t>(sends_[static_cast<std::size_t>(role.first_send + i)])];
      if ((count += role.chunks) > blink::kMostMessages) return false;
    }
  }
  return true;
}
