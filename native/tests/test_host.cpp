// Collectives on the host engine: random sequences of calls, ranks as threads and as processes, each result checked.
//
// Each call varies collective, size, chunk, slots, large or small messages, type, scale, and the number of variants. Each rank also varies its buffers (its own or in its heap), in-place use, and
// its delay. Inputs are rewritten for every call, so a late reader reads wrong data.
// Sanitizers: address, thread.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>

#include "calls.h"
#include "check.h"
#include "plans.h"
#include "ranks.h"

namespace {

using namespace blink_test;

// Whether the system lets ranks copy between their memories.
const bool crossing = may_cross();

// The parameters that are equal on all ranks.
struct Setting {
  Kind kind;
  bool small, scaled;
  std::int64_t slots, item;  // bytes of an element
  blink_binding binding;
  std::vector<blink_binding> variants;  // in addition to `binding`
};

Setting random_setting(std::mt19937& random, int index) {
  const auto draw = [&](unsigned most) { return static_cast<std::int64_t>(random() % most); };
  Setting s{kKinds[draw(kKindCount)], draw(3) == 0 && index != 0, false, 1 + draw(3), draw(3) == 0 ? 1 : 4, {}, {}};
  s.scaled = reduces(s.kind) && draw(4) == 0;  // setting 0 is called most often, and has variants
  const std::int64_t counts[] = {draw(2), 2 + draw(40), 100 + draw(700), 1000 + draw(2000)};
  const std::int64_t chunk = s.small ? 1 << 16 : 1 + draw(draw(2) == 0 ? 80 : 2000);
  s.binding = {counts[draw(4)], static_cast<std::uint32_t>(s.item == 1 ? BLINK_UINT8 : BLINK_UINT32), BLINK_SUM, chunk,
               draw(2) == 0 && crossing};
  if (!s.small) s.variants.resize(static_cast<std::size_t>(index == 0 ? 3 : draw(3)), s.binding);
  for (blink_binding& variant : s.variants) {
    variant.chunk_bytes = 1 + draw(2000);
    variant.cross_memory = draw(2) == 0 && crossing;
  }
  return s;
}

std::uint32_t value(int call, int rank, std::int64_t index) {
  std::uint32_t bits = static_cast<std::uint32_t>(call) * 2654435761u + static_cast<std::uint32_t>(rank) * 40503u +
                       static_cast<std::uint32_t>(index);
  bits ^= bits >> 15;
  bits *= 2246822519u;
  return bits ^ bits >> 13;
}

std::uint32_t factor(const Setting& s, int rank) { return s.scaled ? static_cast<std::uint32_t>(rank) + 2 : 1; }

// The expected element `index` of `rank`'s output, computed from the definition of the collective.
std::uint32_t expected(const Setting& s, int ranks, int call, int rank, std::int64_t index) {
  if (s.kind == Kind::kBroadcast || s.kind == Kind::kChain) return value(call, 0, index);
  const std::int64_t count = s.binding.count;
  if (s.kind == Kind::kAllGather) return value(call, static_cast<int>(index / count), index % count);
  const std::int64_t at = s.kind == Kind::kReduceScatter ? rank * count + index : index;
  std::uint32_t sum = 0;
  for (int r = 0; r < ranks; ++r) sum += factor(s, r) * value(call, r, at);
  return sum;
}

void put(unsigned char* memory, std::int64_t item, std::int64_t index, std::uint32_t bits) {
  std::memcpy(memory + index * item, &bits, static_cast<std::size_t>(item));  // little-endian machines only
}

bool holds(const unsigned char* memory, std::int64_t item, std::int64_t index, std::uint32_t bits) {
  return std::memcmp(memory + index * item, &bits, static_cast<std::size_t>(item)) == 0;
}

// A rank's part of a setting: its operation and its buffers.
class Prepared {
 public:
  Prepared(const Room& room, blink_comm* comm, int rank, const Setting& setting, std::mt19937& random,
           std::size_t& used)
      : setting_(setting), rank_(rank), ranks_(room.ranks()) {
    op_ = created(room, comm, setting.binding);
    for (const blink_binding& binding : setting.variants) {
      expect(blink_op_add_variant(op_, created(room, comm, binding)) == BLINK_OK, "a variant is refused");
    }
    input_ = setting.binding.count * (setting.kind == Kind::kReduceScatter ? ranks_ : 1);
    output_ = setting.binding.count * (setting.kind == Kind::kAllGather ? ranks_ : 1);
    place(room, random, used);
  }
  ~Prepared() { blink_op_destroy(op_); }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  // The sum over all ranks, by an allreduce of one uint32.
  std::uint32_t sum(std::uint32_t mine) {
    put(input_at_, 4, 0, mine);
    expect(blink_op_run(op_, input_at_, output_at_, 0, 1, kPatience) == BLINK_OK, "rank %d: no sum", rank_);
    std::uint32_t total = 0;
    std::memcpy(&total, output_at_, 4);
    return total;
  }

  bool run(int call) {
    const std::int64_t item = setting_.item;
    for (std::int64_t i = 0; !in_place_ && i < output_; ++i) put(output_at_, item, i, 0xa5a5a5a5u);
    for (std::int64_t i = 0; i < input_; ++i) put(input_at_, item, i, value(call, rank_, i));
    const int code = setting_.scaled || call % 3 != rank_ % 2
                         ? blink_op_run(op_, input_at_, output_at_, setting_.scaled, factor(setting_, rank_), kPatience)
                         : run_by_steps(call);
    if (!expect(code == BLINK_OK, "rank %d, call %d: code %d", rank_, call, code)) return false;
    for (std::int64_t i = 0; i < output_; ++i) {
      if (!holds(output_at_, item, i, expected(setting_, ranks_, call, rank_, i))) return wrong(call, "output", i);
    }
    for (std::int64_t i = 0; !in_place_ && i < input_; ++i) {
      if (!holds(input_at_, item, i, value(call, rank_, i))) return wrong(call, "input", i);
    }
    return expect(true, "all right");
  }

 private:
  // Runs some calls to their end, others step by step until they wait, with two threads in turns.
  int run_by_steps(int call) {
    int code = blink_op_start(op_, input_at_, output_at_, kPatience, call % 2);
    for (int steps = 0; code == BLINK_AGAIN && steps < 1 + call % 50; ++steps) {
      if (call % 7 == 0) std::thread([&] { code = blink_op_step(op_, 0); }).join();
      else code = blink_op_step(op_, call % 3);
      if (call % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(call % 200));
    }
    return code == BLINK_AGAIN ? blink_op_finish(op_) : code;
  }

  blink_op* created(const Room& room, blink_comm* comm, const blink_binding& binding) const {
    blink_error error{};
    const PlanHeld plan = read(plan_words(setting_.kind, room.ranks(), setting_.small, setting_.slots), error);
    blink_op* const op = plan == nullptr ? nullptr : blink_op_bind(comm, plan.get(), &binding, &error);
    if (!expect(op != nullptr, "a valid plan is not bound: %s", error.text)) std::exit(1);
    return op;
  }

  // Places the buffers in the heap or in own memory without a spare byte; in place as in nccl.h.
  void place(const Room& room, std::mt19937& random, std::size_t& used) {
    in_place_ = random() % 2 == 0;
    const std::int64_t item = setting_.item;
    const auto whole = static_cast<std::size_t>(std::max(input_, output_) * item);
    input_at_ = memory(room, random, used, in_place_ ? whole : static_cast<std::size_t>(input_ * item), 0);
    output_at_ = in_place_ ? input_at_ : memory(room, random, used, static_cast<std::size_t>(output_ * item), 1);
    if (in_place_ && setting_.kind == Kind::kAllGather) input_at_ += rank_ * setting_.binding.count * item;
    if (in_place_ && setting_.kind == Kind::kReduceScatter) output_at_ += rank_ * setting_.binding.count * item;
  }

  unsigned char* memory(const Room& room, std::mt19937& random, std::size_t& used, std::size_t bytes, int which) {
    if (random() % 2 == 0 && used + bytes <= room.heap_bytes()) {
      unsigned char* at = room.heap(rank_) + used;
      used += (bytes + 15) / 16 * 16;
      return at;
    }
    own_[which] = std::make_unique<unsigned char[]>(bytes);
    return own_[which].get();
  }

  bool wrong(int call, const char* where, std::int64_t index) const {
    const blink_binding& chosen = setting_.binding;
    return expect(false, "rank %d of %d, call %d, kind %d, %ld × %ld, chunk %ld, slots %ld%s%s%s%s: %s element %ld", rank_,
                  ranks_, call, static_cast<int>(setting_.kind), static_cast<long>(chosen.count),
                  static_cast<long>(setting_.item), static_cast<long>(chosen.chunk_bytes),
                  static_cast<long>(setting_.slots), setting_.small ? ", small" : "",
                  chosen.cross_memory != 0 ? ", crosses" : "", in_place_ ? ", in place" : "",
                  setting_.scaled ? ", scaled" : "", where, static_cast<long>(index));
  }

  Setting setting_;
  int rank_, ranks_;
  blink_op* op_ = nullptr;
  std::int64_t input_ = 0, output_ = 0;
  bool in_place_ = false;
  unsigned char* input_at_ = nullptr;
  unsigned char* output_at_ = nullptr;
  std::unique_ptr<unsigned char[]> own_[2];
};

// Bytes per transfer method, to check that each was tested.
std::atomic<std::uint64_t> ways[5];

void come_late(std::mt19937& random) {
  switch (random() % 8) {
    case 0: usleep(random() % 400); break;
    case 1: sched_yield(); break;
    default: break;
  }
}

// Time limit of a group on busy cores, where every hand-over takes a time slice.
constexpr std::chrono::seconds kEnough(8);

// The same calls on every rank, drawn from `seed`; fewer if they take long.
void many_calls(const Room& room, blink_comm* comm, int rank, unsigned seed, int calls) {
  std::mt19937 together(seed), alone(seed * 131 + static_cast<unsigned>(rank));
  std::vector<std::unique_ptr<Prepared>> prepared;
  std::size_t used = 0;
  for (int i = 0; i < 100; ++i) {
    const Setting setting = random_setting(together, i);
    prepared.push_back(std::make_unique<Prepared>(room, comm, rank, setting, alone, used));
  }
  const Setting one{Kind::kOneShot, false, false, 1, 4, {1, BLINK_UINT32, BLINK_SUM, 4, 0}, {}};
  Prepared late(room, comm, rank, one, alone, used);
  if (rank % 2 == 1) expect(blink_record(comm, 100, rank == 1 ? 0 : 64) == BLINK_OK, "rank %d does not record", rank);
  const auto until = std::chrono::steady_clock::now() + kEnough;
  int asked = 0;
  for (int call = 0; call < calls; ++call) {
    if (call % 10 == 9) {
      ++asked;
      if (late.sum(std::chrono::steady_clock::now() > until) > 0) calls = call;
      if (call == calls) break;
    }
    come_late(alone);
    // Mostly the same setting several times in a row, because then calls overlap most.
    const std::size_t which = call % 5 == 0 ? 0 : together() % prepared.size();
    if (!prepared[which]->run(call)) return;
  }
  blink_stats stats;
  blink_get_stats(comm, &stats);
  calls += asked;
  expect(stats.calls == static_cast<std::uint64_t>(calls), "rank %d counts %lu calls of %d", rank, stats.calls, calls);
  expect(stats.message_bytes ==
             stats.inline_bytes + stats.staged_bytes + stats.direct_read_bytes + stats.direct_write_bytes,
         "rank %d: message bytes are not those of the four ways together", rank);
  ways[0] += stats.inline_bytes;
  ways[1] += stats.staged_bytes;
  ways[2] += stats.direct_read_bytes;
  ways[3] += stats.direct_write_bytes;
  ways[4] += stats.crossed_bytes;
}

cpu_set_t cores_of(std::initializer_list<std::size_t> cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const std::size_t core : cores) CPU_SET(core, &set);
  return set;
}

// Only the highest rank on a core moves, to a core with at least two ranks less.
void spreads_over_cores() {
  const cpu_set_t two = cores_of({0, 1}), four = cores_of({0, 1, 2, 3});
  const auto moves = [](std::vector<int> cores, int rank, const cpu_set_t& allowed, cpu_set_t expected) {
    const cpu_set_t found = blink::freer_cores(cores, rank, allowed);
    expect(CPU_EQUAL(&found, &expected) != 0, "rank %d of %zu would move to %d cores instead of %d, or others", rank,
           cores.size(), CPU_COUNT(&found), CPU_COUNT(&expected));
  };
  moves({0, 0}, 1, two, cores_of({1}));
  moves({0, 0}, 0, two, {});
  moves({0, 0}, 1, cores_of({0}), {});
  moves({0, 1}, 1, two, {});
  moves({1, 1, 1, 0}, 2, two, cores_of({0}));
  moves({1, 1, 1, 0}, 1, two, {});
  moves({1, 0, 1, 0}, 2, two, {});
  moves({1, 1, 0}, 1, two, {});
  moves({3, 3, 3, 1, -1}, 2, four, cores_of({0, 1, 2}));
  moves({-1, -1}, 1, two, {});
}

blink_shape shape_for(int ranks) { return {ranks, 96, 128 << 10, 40 * 4160, 4096}; }

// A rank whose call only receives may leave it alone until the calls of all others have ended.
void only_receives_what_is_left(const blink_shape& shape) {
  for (const Kind kind : {Kind::kOneShot, Kind::kAllGather, Kind::kOneHop, Kind::kRing}) {
    const Room room(shape, 4096, 64);
    std::atomic<int> begun{0}, ended{0};
    const auto await = [](const std::atomic<int>& number, int wanted) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (number < wanted && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      return number >= wanted;
    };
    as_threads(room, [&](blink_comm* comm, int rank) {
      CallOptions options;
      options.kind = kind;
      options.small = true;
      Call call(room, comm, rank, options);
      if (rank != 0) {
        expect(await(begun, 1) && call.run() == BLINK_OK, "rank %d: its call fails", rank);
        ++ended;
        return;
      }
      expect(call.start() == BLINK_AGAIN, "a call ends before the others begin it");
      const bool alone = blink_op_only_receives(call.op()) != 0;
      expect(alone == (kind == Kind::kOneShot || kind == Kind::kAllGather), "kind %d: only_receives is %d",
             static_cast<int>(kind), alone);
      begun = 1;
      if (alone) expect(await(ended, room.ranks() - 1), "the others wait for rank 0");
      expect(blink_op_finish(call.op()) == BLINK_OK, "a call in steps fails");
    });
  }
}


}  // namespace

int main() {
  limit_seconds(290);
  spreads_over_cores();
  only_receives_what_is_left(shape_for(3));
  unsigned seed = 1;
  for (const int ranks : {2, 3, 4}) {
    for (const int cores : {1, 64}) {
      const Room threads(shape_for(ranks), 192 << 10, cores), processes(shape_for(ranks), 192 << 10, cores);
      const unsigned first = seed++, second = seed++;
      as_threads(threads, [&](blink_comm* comm, int rank) { many_calls(threads, comm, rank, first, 150 * kEffort); });
      as_processes(processes,
                   [&](blink_comm* comm, int rank) { many_calls(processes, comm, rank, second, 150 * kEffort); });
    }
  }
  for (int way = 0; way < (crossing ? 5 : 4); ++way) expect(ways[way] > 0, "no message used transfer method %d", way);
  return verdict();
}
