#include "tables.h"

#include <algorithm>
#include <cstring>

namespace blink {
namespace {

// Limits of the sizes in tables, so that no product or sum of them overflows.
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 46;
constexpr std::int64_t kMostTicks = std::int64_t{1} << 20;  // of look-ahead, because the loop runs through all of them
constexpr std::int64_t kMostDivisor = std::int64_t{1} << 30;
constexpr std::int64_t kMostRows = 1 << 24;

// Rows are int64s; each table is copied as a whole.
template <class Row>
bool copy_rows(std::vector<Row>& rows, const Row* table, std::int64_t count) {
  static_assert(sizeof(Row) % sizeof(std::int64_t) == 0, "rows are int64s");
  if (count < 0 || count > kMostRows || (count > 0 && table == nullptr)) return false;
  rows.resize(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(rows.data(), table, rows.size() * sizeof(Row));
  return true;
}

// Whether the `count` entries from `first` on exist among `size` entries.
bool within(std::int64_t first, std::int64_t count, std::int64_t size) {
  return first >= 0 && count >= 0 && count <= size && first <= size - count;
}

template <class Row>
bool within(std::int64_t first, std::int64_t count, const std::vector<Row>& rows) {
  return within(first, count, static_cast<std::int64_t>(rows.size()));
}

bool is_flag(std::int64_t value) { return value == 0 || value == 1; }

// Whether `bytes` at `place` are inside a buffer of `size`, at a whole item; kNowhere is valid too.
bool placed(std::int64_t place, std::int64_t bytes, std::int64_t size, std::int64_t item) {
  return place == kNowhere || (within(place, bytes, size) && place % item == 0);
}

class Check {
 public:
  Check(const Tables& tables, const blink_shape& shape, int rank)
      : t_(tables), shape_(shape), rank_(rank), item_(static_cast<std::int64_t>(tables.kernel->itemsize)) {}

  bool all() const {
    const auto right = [this](const auto& row) { return is_right(row); };
    return sizes() && std::all_of(t_.roles.begin(), t_.roles.end(), right) &&
           std::all_of(t_.rings.begin(), t_.rings.end(), right) &&
           std::all_of(t_.receives.begin(), t_.receives.end(), right) &&
           std::all_of(t_.readers.begin(), t_.readers.end(), right) &&
           std::all_of(t_.sends.begin(), t_.sends.end(), [this](std::int64_t r) { return within(r, 1, t_.rings); }) &&
           std::all_of(t_.roles.begin(), t_.roles.end(),
                       [this](const blink_role& role) { return splits_its_input(role) && has_room(role); }) &&
           is_countable();
  }

 private:
  bool sizes() const {
    return within(0, t_.numbers.input_bytes, kMostBytes) && within(0, t_.numbers.output_bytes, kMostBytes) &&
           within(0, t_.numbers.shift_bytes, area()) && t_.numbers.shift_bytes % unit() == 0 && t_.numbers.shifts >= 1 &&
           (t_.numbers.shift_bytes > 0 ? t_.numbers.shifts <= area() / t_.numbers.shift_bytes : t_.numbers.shifts <= 1);
  }

  bool is_right(const blink_role& r) const {
    return within(0, r.length, kMostElements) && within(r.offset, 0, kMostTicks) &&
           r.chunk_elements >= 1 && r.chunk_elements <= kMostElements &&
           r.chunks == (r.length + r.chunk_elements - 1) / r.chunk_elements &&
           !(t_.numbers.inline_messages && r.chunks > 1) && placed(r.source, r.length * item_, t_.numbers.input_bytes, item_) &&
           placed(r.target, r.length * item_, t_.numbers.output_bytes, item_) && r.divisor >= 1 && r.divisor <= kMostDivisor &&
           within(r.first_receive, r.receives, t_.receives) && within(r.first_send, r.sends, t_.sends) &&
           within(r.own_operand_index, 0, r.receives) && !(r.source == kNowhere && r.receives == 0);
  }

  bool is_right(const blink_receive& r) const {
    return is_rank(r.rank) && (r.rank != rank_ || is_ring_alone(r)) && is_line(r.line) && is_line(r.ack_line) && is_ring(r.staging, r.stride, r.slots) &&
           within(r.queue, 1, t_.numbers.queue_count) && within(r.direct_read, 0, BLINK_READ_OUTPUT) &&
           r.direct_offset >= 0 && placed(r.direct_offset, 0, kMostBytes, item_) && is_flag(r.direct_write) &&
           within(r.reply_to, 0, shape_.ranks) && is_flag(r.split) &&
           !(r.split != 0 && (r.direct_write == 0 || r.direct_read != BLINK_READ_INPUT));
  }

  bool is_right(const blink_ring& r) const {
    return is_line(r.line) && is_ring(r.staging, r.stride, r.slots) && within(r.first_reader, r.readers, t_.readers) &&
           within(r.direct_read, 0, BLINK_READ_OUTPUT) && within(r.reply_to, 0, shape_.ranks) && is_flag(r.split) &&
           !(r.split != 0 &&
             (r.direct_read != BLINK_READ_INPUT || r.readers != 1 || t_.readers_of(r).begin()->write_offset == kNowhere));
  }

  bool is_right(const blink_reader& r) const {
    return is_rank(r.rank) && (r.rank != rank_ || r.write_offset == kNowhere) && is_line(r.ack_line) && placed(r.write_offset, 0, kMostBytes, item_) &&
           within(r.rail, 0, BLINK_MOST_RAILS);
  }

  // Split messages, of which the sender writes half, must be the sender's own input.
  bool splits_its_input(const blink_role& role) const {
    const auto sends = t_.sends_of(role);
    return (role.receives == 0 && role.source != kNowhere) ||
           std::none_of(sends.begin(), sends.end(), [this](std::int64_t ring) { return t_.ring(ring).split != 0; });
  }

  // Whether a role's messages fit into all their rings.
  bool has_room(const blink_role& role) const {
    const std::int64_t bytes = std::min(role.length, role.chunk_elements) * item_;
    const std::int64_t needed =
        t_.numbers.inline_messages ? (bytes + BLINK_PAYLOAD_BYTES - 1) / BLINK_PAYLOAD_BYTES * BLINK_BLOCK_BYTES : bytes;
    const auto receives = t_.receives_of(role);
    const auto sends = t_.sends_of(role);
    return std::all_of(receives.begin(), receives.end(), [=](const auto& receive) { return needed <= receive.stride; }) &&
           std::all_of(sends.begin(), sends.end(), [=](std::int64_t ring) { return needed <= t_.ring(ring).stride; });
  }

  // Whether a control word can count every queue's messages of one call.
  bool is_countable() const {
    std::vector<std::int64_t> received(static_cast<std::size_t>(t_.numbers.queue_count), 0), sent(t_.rings.size(), 0);
    for (const blink_role& role : t_.roles) {
      for (const blink_receive& receive : t_.receives_of(role)) {
        if ((received[static_cast<std::size_t>(receive.queue)] += role.chunks) > kMostMessages) return false;
      }
      for (const std::int64_t ring : t_.sends_of(role)) {
        if ((sent[static_cast<std::size_t>(ring)] += role.chunks) > kMostMessages) return false;
      }
    }
    return true;
  }

  bool is_line(std::int64_t line) const { return within(line, 1, shape_.lines); }
  bool is_rank(std::int64_t rank) const { return within(rank, 1, shape_.ranks); }
  // A rank that acts as a relay sends itself messages, which must be in its ring only.
  static bool is_ring_alone(const blink_receive& r) {
    return r.direct_read == BLINK_READ_NONE && r.direct_write == 0 && r.reply_to == 0;
  }
  bool is_ring(std::int64_t at, std::int64_t stride, std::int64_t slots) const {
    const std::int64_t room = area() - t_.numbers.shift_bytes * (t_.numbers.shifts - 1);
    return slots >= 1 && slots <= kMostMessages && within(at, 0, room) && within(stride, 0, room) && at % unit() == 0 &&
           stride % unit() == 0 && stride <= (room - at) / slots;
  }

  // The bytes per rank and bank for messages of this kind, and their granularity.
  std::int64_t area() const { return t_.numbers.inline_messages ? shape_.inline_bytes : shape_.staging_bytes; }
  std::int64_t unit() const { return t_.numbers.inline_messages ? BLINK_BLOCK_BYTES : static_cast<std::int64_t>(kLineBytes); }

  const Tables& t_;
  const blink_shape& shape_;
  const int rank_;
  const std::int64_t item_;
};

void find_ticks(Tables& tables) {
  bool any = false;
  for (const blink_role& role : tables.roles) {
    if (role.chunks == 0) continue;
    tables.first_tick = any ? std::min(tables.first_tick, role.offset) : role.offset;
    tables.last_tick = any ? std::max(tables.last_tick, role.offset + role.chunks) : role.offset + role.chunks;
    any = true;
  }
}

}  // namespace

std::unique_ptr<const Tables> read_tables(const blink_tables& given, const blink_shape& shape, int rank) {
  auto made = std::make_unique<Tables>();
  Tables& t = *made;
  if (!copy_rows(t.roles, given.roles, given.role_count) ||
      !copy_rows(t.receives, given.receives, given.receive_count) ||
      !copy_rows(t.sends, given.sends, given.send_count) || !copy_rows(t.rings, given.rings, given.ring_count) ||
      !copy_rows(t.readers, given.readers, given.reader_count) || given.queue_count < 0 ||
      given.queue_count > kMostRows) {
    return nullptr;
  }
  t.numbers = given;
  t.kernel = find_kernel(given.dtype, given.op);
  if (t.kernel == nullptr || !Check(t, shape, rank).all()) return nullptr;
  if (given.cross_memory != 0) {
    const auto read_in = [&t](std::int64_t where) {
      return std::any_of(t.rings.begin(), t.rings.end(), [=](const blink_ring& r) { return r.direct_read == where; });
    };
    t.lends_input = read_in(BLINK_READ_INPUT);
    t.lends_output = read_in(BLINK_READ_OUTPUT) || std::any_of(t.receives.begin(), t.receives.end(),
                                                               [](const blink_receive& r) { return r.split != 0; });
  }
  find_ticks(t);
  return made;
}

}  // namespace blink
