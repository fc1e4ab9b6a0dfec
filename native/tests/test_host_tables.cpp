// Wrong tables, made by random damage to valid ones, are rejected, or run without accesses outside the buffers.
//
// An accepted table may give any bytes and any code. But it ends, the memory around its buffers and the others' inputs
// stay unchanged, and the sanitizers find nothing.
// Sanitizers: address.
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "check.h"
#include "plans.h"
#include "ranks.h"

namespace {

using namespace blink_test;

constexpr int kRanks = 3;
constexpr std::int64_t kMoment = 2'000;   // microseconds, because damaged tables mostly end with a timeout
constexpr std::size_t kAround = 256;      // bytes before and after each buffer in a heap
constexpr unsigned char kUntouched = 0x5e;

// One rank's tables, and the memory that `tables` points to.
struct Rows {
  std::vector<blink_role> roles;
  std::vector<blink_receive> receives;
  std::vector<std::int64_t> sends;
  std::vector<blink_ring> rings;
  std::vector<blink_reader> readers;
  blink_tables numbers;

  explicit Rows(const blink_tables& t)
      : roles(t.roles, t.roles + t.role_count), receives(t.receives, t.receives + t.receive_count),
        sends(t.sends, t.sends + t.send_count), rings(t.rings, t.rings + t.ring_count),
        readers(t.readers, t.readers + t.reader_count), numbers(t) {}

  blink_tables tables() const {
    blink_tables t = numbers;
    t.roles = roles.data(), t.receives = receives.data(), t.sends = sends.data();
    t.rings = rings.data(), t.readers = readers.data();
    return t;
  }
};

blink_shape shape() { return {kRanks, 40, 8 << 10, 6 * 4160, 64}; }

std::int64_t odd_value(std::mt19937_64& random, std::int64_t was) {
  const auto near = [was](std::uint64_t more) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(was) + more);  // wraps around
  };
  const std::int64_t choices[] = {
      -1, 0, 1, 2, 3, 63, 64, 4096, 4160, near(1), near(~0ull), near(64), near(~63ull), near(4), near(8),
      std::int64_t{1} << 24, std::int64_t{1} << 32, std::int64_t{1} << 40, std::int64_t{1} << 60, INT64_MAX, INT64_MIN,
      static_cast<std::int64_t>(random())};
  return choices[random() % (sizeof choices / sizeof choices[0])];
}

template <class Row>
void damage_one(std::vector<Row>& rows, std::mt19937_64& random) {
  if (rows.empty()) return;
  Row& row = rows[random() % rows.size()];
  std::int64_t words[sizeof(Row) / 8];
  std::memcpy(words, &row, sizeof row);
  std::int64_t& word = words[random() % (sizeof(Row) / 8)];
  word = odd_value(random, word);
  std::memcpy(static_cast<void*>(&row), words, sizeof row);
}

// Damages the numbers beside the rows. Buffer sizes only shrink, because larger ones would exceed the caller's memory.
void damage_numbers(blink_tables& t, std::mt19937_64& random) {
  switch (random() % 11) {
    case 0: t.inline_messages ^= 1; break;
    case 1: t.direct_read_in_place ^= 1; break;
    case 2: t.direct_write_in_place ^= 1; break;
    case 3: t.input_bytes = std::min(t.input_bytes, odd_value(random, t.input_bytes)); break;
    case 4: t.output_bytes = std::min(t.output_bytes, odd_value(random, t.output_bytes)); break;
    case 5: t.queue_count = odd_value(random, t.queue_count) % (1 << 20); break;
    case 6: t.shift_bytes = odd_value(random, t.shift_bytes); break;
    case 7: t.shifts = odd_value(random, t.shifts); break;
    case 8: t.cross_memory ^= 1; break;
    case 9: t.dtype = static_cast<std::uint32_t>(random() % 18); break;
    default: t.op = static_cast<std::uint32_t>(random() % 9); break;
  }
}

void damage(Rows& rows, std::mt19937_64& random) {
  for (bool more = true; more; more = random() % 4 == 0) {
    switch (random() % 6) {
      case 0: damage_one(rows.roles, random); break;
      case 1: damage_one(rows.receives, random); break;
      case 2: damage_one(rows.sends, random); break;
      case 3: damage_one(rows.rings, random); break;
      case 4: damage_one(rows.readers, random); break;
      default: damage_numbers(rows.numbers, random); break;
    }
  }
}

struct Case {
  std::vector<Rows> rows;  // of each rank
  std::size_t input_bytes, output_bytes;
};

Case random_case(std::mt19937_64& random) {
  const Kind kind = kKinds[random() % kKindCount];
  const bool small = random() % 3 == 0;
  const auto slots = 1 + static_cast<std::int64_t>(random() % 3);
  const blink_binding binding{static_cast<std::int64_t>(random() % 100),
                              static_cast<std::uint32_t>(random() % 2 == 0 ? BLINK_UINT8 : BLINK_FLOAT32), BLINK_SUM,
                              small ? 1 << 12 : 1 + static_cast<std::int64_t>(random() % 100),
                              static_cast<std::int64_t>(random() % 2)};
  Case made{{}, 0, 0};
  for (int r = 0; r < kRanks; ++r) {
    blink_error error{};
    const BoundHeld rows = bound(kind, shape(), r, small, slots, binding, error);
    if (!expect(rows != nullptr, "a valid plan is not bound: %s", error.text)) std::exit(1);
    made.rows.emplace_back(*blink_bound_tables(rows.get()));
  }
  made.input_bytes = static_cast<std::size_t>(made.rows[0].numbers.input_bytes);
  made.output_bytes = static_cast<std::size_t>(made.rows[0].numbers.output_bytes);
  return made;
}

// Creates tables one after the other on one communicator.
void creation() {
  std::mt19937_64 random(7);
  const Room room(shape(), 4096, 64);
  blink_comm* comm = room.attach(0, false);
  long refused = 0, accepted = 0;
  for (int i = 0; i < 10'000 * kEffort; ++i) {
    Case made = random_case(random);
    const blink_tables right = made.rows[0].tables();
    blink_op* op = blink_op_create(comm, &right);
    expect(op != nullptr, "valid tables are rejected");
    blink_op_destroy(op);
    damage(made.rows[0], random);
    const blink_tables wrong = made.rows[0].tables();
    op = blink_op_create(comm, &wrong);
    ++(op == nullptr ? refused : accepted);
    blink_op_destroy(op);
  }
  expect(refused > accepted / 4 && accepted > 100, "%ld refused, %ld accepted", refused, accepted);
  blink_detach(comm);
}

// A rank's buffers: in its heap with guards, or own memory without a spare byte.
class Buffers {
 public:
  Buffers(const Room& room, int rank, const Case& made, bool in_heap)
      : own_in_(new unsigned char[made.input_bytes]), own_out_(new unsigned char[made.output_bytes]),
        heap_(room.heap(rank)), end_(heap_ + room.heap_bytes()), input_(made.input_bytes), output_(made.output_bytes) {
    const std::size_t second = 2 * kAround + (input_ + 15) / 16 * 16;
    expect(second + output_ + kAround <= room.heap_bytes(), "the heap is too small");
    in = in_heap ? heap_ + kAround : own_in_.get();
    out = in_heap ? heap_ + second : own_out_.get();
    std::memset(heap_, kUntouched, room.heap_bytes());
    std::memset(in, kUntouched, input_);
    std::memset(out, kUntouched, output_);
  }

  // Whether everything except the output is unchanged; a sanitizer checks the surroundings of own memory.
  bool untouched() const {
    const unsigned char* hole = out == own_out_.get() ? end_ : out;
    return same(in, in + input_) && same(heap_, hole) && same(hole == end_ ? end_ : out + output_, end_);
  }

  unsigned char* in;
  unsigned char* out;

 private:
  static bool same(const unsigned char* from, const unsigned char* to) {
    return std::all_of(from, to, [](unsigned char byte) { return byte == kUntouched; });
  }

  std::unique_ptr<unsigned char[]> own_in_, own_out_;
  unsigned char* heap_;
  unsigned char* end_;
  std::size_t input_, output_;
};

// Runs up to three calls of one rank. Returns its code; BLINK_ABORTED if its tables are rejected.
int run_rank(blink_comm* comm, const Rows& rows, const Buffers& buffers, bool scaled) {
  const blink_tables tables = rows.tables();
  blink_op* op = blink_op_create(comm, &tables);
  if (op == nullptr) {
    blink_abort(comm, "refused");
    return BLINK_ABORTED;
  }
  int code = BLINK_OK;
  for (int call = 0; call < 3 && code == BLINK_OK; ++call) {
    code = blink_op_run(op, buffers.in, buffers.out, scaled, 2, kMoment);
  }
  blink_op_destroy(op);
  return code;
}

// Damages some ranks' tables, and runs the accepted ones on all ranks.
void running() {
  std::mt19937_64 random(11);
  std::atomic<long> codes[BLINK_INTERRUPTED + 1] = {};
  for (int i = 0; i < 500 * kEffort; ++i) {
    Case made = random_case(random);
    const std::uint64_t damaged = 1 + random() % ((1 << kRanks) - 1);
    const bool in_heap = random() % 2 == 0, scaled = random() % 4 == 0;
    const Room room(shape(), 4096, 1);
    std::vector<std::unique_ptr<Buffers>> buffers;
    for (int r = 0; r < kRanks; ++r) {
      buffers.push_back(std::make_unique<Buffers>(room, r, made, in_heap));
      if (damaged >> r & 1) damage(made.rows[static_cast<std::size_t>(r)], random);
    }
    as_threads(room, [&](blink_comm* comm, int rank) {
      const auto r = static_cast<std::size_t>(rank);
      ++codes[run_rank(comm, made.rows[r], *buffers[r], scaled)];
    });
    for (int r = 0; r < kRanks; ++r) {
      expect(buffers[static_cast<std::size_t>(r)]->untouched(), "case %d: around rank %d's output memory changed", i,
             r);
    }
  }
  // Either a timeout or another rank's end comes first, by chance: both must occur.
  expect(codes[BLINK_OK] > 100 && codes[BLINK_DEADLINE] > 0 && codes[BLINK_ABORTED] > 100,
         "%ld ended well, %ld with a deadline, %ld were refused", codes[BLINK_OK].load(), codes[BLINK_DEADLINE].load(),
         codes[BLINK_ABORTED].load());
  expect(codes[BLINK_SYSTEM] == 0 && codes[BLINK_PEER_LOST] == 0, "codes without a cause");
}

}  // namespace

int main() {
  limit_seconds(290);
  creation();
  if (!kThreadSanitizer) running();  // ranks that disagree about the writer of a place do race
  return verdict();
}
