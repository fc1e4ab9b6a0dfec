#include "plan.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace blink {
namespace {

constexpr std::int64_t kMostRows = 1 << 24;
constexpr std::int64_t kMostRanks = 1 << 12;
constexpr std::int64_t kMostParts = std::int64_t{1} << 62;

bool between(std::int64_t first, std::int64_t number, std::int64_t end) { return number >= first && number < end; }
bool below(std::int64_t number, std::int64_t end) { return between(0, number, end); }
bool is_flag(std::int64_t number) { return below(number, 2); }

// Reads one table after the other from a plan's bytes.
class Reader {
 public:
  Reader(const unsigned char* bytes, std::uint64_t size) : at_(bytes), left_(size) {}

  template <class Row>
  bool take(std::vector<Row>& rows, std::int64_t count) {
    static_assert(sizeof(Row) % sizeof(std::int64_t) == 0, "rows are int64s");
    if (!below(count, kMostRows) || static_cast<std::uint64_t>(count) > left_ / sizeof(Row)) return false;
    rows.resize(static_cast<std::size_t>(count));
    const std::size_t bytes = rows.size() * sizeof(Row);
    if (bytes > 0) std::memcpy(rows.data(), at_, bytes);
    at_ += bytes;
    left_ -= bytes;
    return true;
  }
  bool is_at_end() const { return left_ == 0; }

 private:
  const unsigned char* at_;
  std::uint64_t left_;
};

// Checks that consecutive rows refer to consecutive parts: each begins at the end of the one before, and ends inside.
class Running {
 public:
  explicit Running(std::size_t size) : size_(static_cast<std::int64_t>(size)) {}
  bool next(std::int64_t first, std::int64_t count) {
    if (first != end_ || count < 0 || count > size_ - end_) return false;
    end_ += count;
    return true;
  }
  bool is_at_end() const { return end_ == size_; }

 private:
  std::int64_t size_, end_ = 0;
};

class Check {
 public:
  explicit Check(const blink_plan& plan) : p_(plan) {}

  // The invalid part of the plan; nullptr: the plan is valid.
  const char* fault() const {
    const auto all = [this](const auto& rows) {
      return std::all_of(rows.begin(), rows.end(), [this](const auto& row) { return is_right(row); });
    };
    const blink_plan_header& h = p_.header;
    if (!below(h.collective, BLINK_SENDRECV + 1) || !between(1, h.rank_count, kMostRanks) || !below(h.root, h.rank_count) ||
        !below(h.dst, h.rank_count) || !is_flag(h.inline_messages)) {
      return "its header";
    }
    if (!all(p_.ranks) || !ranks_follow()) return "a rank";
    if (!all(p_.slices)) return "a slice";
    if (!rings_follow() || !all(p_.rings)) return "a ring";
    if (!std::all_of(p_.sources.begin(), p_.sources.end(), [this](std::int64_t slice) { return is_slice(slice); })) {
      return "a ring's slice";
    }
    if (!all(p_.readers)) return "a reader";
    return roles() ? nullptr : "a role";
  }

 private:
  bool ranks_follow() const {
    Running roles(p_.roles.size()), rings(p_.rings.size());
    return std::all_of(p_.ranks.begin(), p_.ranks.end(), [&](const blink_plan_rank& rank) {
      return roles.next(rank.first_role, rank.roles) && rings.next(rank.first_ring, rank.rings);
    }) && roles.is_at_end() && rings.is_at_end();
  }

  bool rings_follow() const {
    Running sources(p_.sources.size()), readers(p_.readers.size());
    return std::all_of(p_.rings.begin(), p_.rings.end(), [&](const blink_plan_ring& ring) {
      return sources.next(ring.first_source, ring.sources) && readers.next(ring.first_reader, ring.readers);
    }) && sources.is_at_end() && readers.is_at_end();
  }

  bool is_right(const blink_plan_rank& rank) const {
    return below(rank.input_blocks, p_.header.rank_count + 1) && below(rank.output_blocks, p_.header.rank_count + 1) &&
           below(rank.queues, kMostRows) && is_flag(rank.direct_read_in_place) && is_flag(rank.direct_write_in_place);
  }

  bool is_right(const blink_plan_slice& s) const {
    const auto share = [](std::int64_t part, std::int64_t parts) {
      return between(1, parts, kMostParts) && below(part, parts + 1);
    };
    return below(s.block, kMostRows) && share(s.start, s.start_parts) && share(s.stop, s.stop_parts);
  }

  bool is_right(const blink_plan_ring& ring) const {
    if (!is_rank(ring.rank) || !between(1, ring.slots, kMostMessages + 1) || !below(ring.line, kMostRows) ||
        !below(ring.direct_read, BLINK_READ_OUTPUT + 1) || !is_flag(ring.drain) || !is_flag(ring.split)) {
      return false;
    }
    const blink_plan_rank& rank = rank_of(ring.rank);
    const std::int64_t number = &ring - p_.rings.data();
    const std::int64_t blocks = ring.direct_read == BLINK_READ_INPUT ? rank.input_blocks : rank.output_blocks;
    const bool answers_one = below(ring.answers, static_cast<std::int64_t>(p_.rings.size())) &&
                             ring_of(ring.answers).answers == BLINK_NOWHERE;
    return between(rank.first_ring, number, rank.first_ring + rank.rings) && ring.sources >= 1 &&
           (ring.direct_read == BLINK_READ_NONE ? ring.direct_block == BLINK_NOWHERE : below(ring.direct_block, blocks)) &&
           (ring.answers == BLINK_NOWHERE || answers_one);
  }

  bool is_right(const blink_plan_reader& reader) const {
    return is_rank(reader.rank) && below(reader.ack_line, kMostRows) &&
           is_block(reader.write_block, rank_of(reader.rank).output_blocks) && below(reader.rail, BLINK_MOST_RAILS + 1);
  }

  bool roles() const {
    Running receives(p_.receives.size()), sends(p_.sends.size());
    for (const blink_plan_rank& rank : p_.ranks) {
      for (std::int64_t i = rank.first_role; i < rank.first_role + rank.roles; ++i) {
        const blink_plan_role& role = p_.roles[static_cast<std::size_t>(i)];
        if (!is_slice(role.slice) || !is_block(role.source_block, rank.input_blocks) ||
            !is_block(role.target_block, rank.output_blocks) || role.contributions < 1 ||
            !receives.next(role.first_receive, role.receives) || !sends.next(role.first_send, role.sends) ||
            !messages(rank, role)) {
          return false;
        }
      }
    }
    return receives.is_at_end() && sends.is_at_end();
  }

  bool messages(const blink_plan_rank& rank, const blink_plan_role& role) const {
    for (std::int64_t i = role.first_receive; i < role.first_receive + role.receives; ++i) {
      const blink_plan_receive& receive = p_.receives[static_cast<std::size_t>(i)];
      if (!below(receive.ring, static_cast<std::int64_t>(p_.rings.size())) || !below(receive.queue, rank.queues)) {
        return false;
      }
      const blink_plan_ring& ring = ring_of(receive.ring);
      if (!between(ring.first_reader, receive.reader, ring.first_reader + ring.readers)) return false;
      if (&rank_of(p_.readers[static_cast<std::size_t>(receive.reader)].rank) != &rank) return false;
    }
    return std::all_of(p_.sends.begin() + role.first_send, p_.sends.begin() + role.first_send + role.sends,
                       [&](std::int64_t ring) { return between(rank.first_ring, ring, rank.first_ring + rank.rings); });
  }

  bool is_rank(std::int64_t rank) const { return below(rank, p_.header.rank_count); }
  bool is_slice(std::int64_t slice) const { return below(slice, static_cast<std::int64_t>(p_.slices.size())); }
  static bool is_block(std::int64_t block, std::int64_t blocks) { return block == BLINK_NOWHERE || below(block, blocks); }
  const blink_plan_rank& rank_of(std::int64_t rank) const { return p_.ranks[static_cast<std::size_t>(rank)]; }
  const blink_plan_ring& ring_of(std::int64_t ring) const { return p_.rings[static_cast<std::size_t>(ring)]; }

  const blink_plan& p_;
};

}  // namespace

std::uint64_t checksum(const unsigned char* words, std::size_t count) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t word;
    std::memcpy(&word, words + i * sizeof word, sizeof word);
    // A bijection of the word at each place (xorshift and odd multipliers), so that no single change is missed.
    word += (i + 1) * 0x9e3779b97f4a7c15ull;
    word = (word ^ word >> 32) * 0xd6e8feb86659fd93ull;
    sum += word ^ word >> 32;
  }
  return sum;
}

std::nullptr_t refuse(blink_error& why, int code, const char* format, ...) {
  why = blink_error{};
  why.code = code;
  why.rank = why.peer = -1;
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(why.text, sizeof why.text, format, arguments);
  va_end(arguments);
  return nullptr;
}

std::unique_ptr<const blink_plan> read_plan(const void* bytes, std::uint64_t size, blink_error& why) {
  const auto* all = static_cast<const unsigned char*>(bytes);
  auto made = std::make_unique<blink_plan>();
  blink_plan_header& h = made->header;
  if (bytes == nullptr || size < sizeof h || size % sizeof(std::int64_t) != 0) {
    return refuse(why, BLINK_INVALID, "a plan has %llu bytes; expected a multiple of %zu, at least %zu",
                  static_cast<unsigned long long>(size), sizeof(std::int64_t), sizeof h);
  }
  std::memcpy(&h, all, sizeof h);
  if (h.magic != BLINK_PLAN_MAGIC || h.version != BLINK_PLAN_VERSION) {
    return refuse(why, BLINK_INVALID, "this is not a plan, or its layout is not version %d", BLINK_PLAN_VERSION);
  }
  if (h.words < 0 || static_cast<std::uint64_t>(h.words) != size / sizeof(std::int64_t)) {
    return refuse(why, BLINK_INVALID, "the plan's header gives its size as %lld words, but it has %llu",
                  static_cast<long long>(h.words), static_cast<unsigned long long>(size / sizeof(std::int64_t)));
  }
  constexpr std::size_t kSummed = offsetof(blink_plan_header, checksum) + sizeof h.checksum;
  if (h.checksum != checksum(all + kSummed, (size - kSummed) / sizeof(std::int64_t))) {
    return refuse(why, BLINK_INVALID, "the plan is damaged: its checksum differs");
  }
  Reader reader(all + sizeof h, size - sizeof h);
  if (!reader.take(made->ranks, h.rank_count) || !reader.take(made->slices, h.slice_count) ||
      !reader.take(made->roles, h.role_count) || !reader.take(made->receives, h.receive_count) ||
      !reader.take(made->sends, h.send_count) || !reader.take(made->rings, h.ring_count) ||
      !reader.take(made->sources, h.source_count) || !reader.take(made->readers, h.reader_count) ||
      !reader.is_at_end()) {
    return refuse(why, BLINK_INVALID, "the sizes of the plan's tables differ from those in its header");
  }
  if (const char* fault = Check(*made).fault()) {
    return refuse(why, BLINK_INVALID, "the plan is invalid: %s is wrong", fault);
  }
  return made;
}

}  // namespace blink

extern "C" {

blink_plan* blink_plan_read(const void* bytes, uint64_t size, blink_error* error) {
  return const_cast<blink_plan*>(blink::read_plan(bytes, size, *error).release());
}

void blink_plan_free(blink_plan* plan) { delete plan; }

}  // extern "C"
