// Plans for any size: valid ones are bound and run, truncated or altered ones are rejected with a reason. Any accepted
// one is bound without invalid memory accesses.
// Sanitizers: address.
#include <cstring>
#include <memory>
#include <random>

#include "check.h"
#include "plans.h"
#include "ranks.h"

namespace {

using namespace blink_test;

constexpr int kRanks = 3;
constexpr Kind kSums[] = {Kind::kOneHop, Kind::kOneShot, Kind::kTwoTrees, Kind::kRing};
constexpr std::int64_t kCounts[] = {0, 1, 2, 15, 16, 17, 300, 1001, 30'000};

blink_shape shape() { return {kRanks, 60, 8 << 10, 6 * 4160, 64}; }

// Sums with counts from none to more than fit at once, in every kind of plan.
void sums() {
  for (const Kind kind : kSums) {
    for (const bool small : {false, true}) {
      blink_error error;
      const PlanHeld plan = read(plan_words(kind, kRanks, small, 2), error);
      if (!expect(plan != nullptr, "a valid plan is rejected: %s", error.text)) continue;
      const Room room(shape(), 4096, 64);
      as_threads(room, [&](blink_comm* comm, int rank) {
        for (const std::int64_t count : kCounts) {
          const blink_binding binding{count, BLINK_UINT32, BLINK_SUM, 1 << 12, 0};
          blink_error why{};
          const std::unique_ptr<blink_op, Free> op(blink_op_bind(comm, plan.get(), &binding, &why));
          if (op == nullptr) {
            expect(small && count > 1001 && why.code == BLINK_UNSUPPORTED, "%ld elements: %s",
                   static_cast<long>(count), why.text);
            continue;
          }
          std::vector<std::uint32_t> data(static_cast<std::size_t>(count));
          for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint32_t>(i * (rank + 1u));
          const int code = blink_op_run(op.get(), data.data(), data.data(), 0, 1, kPatience);
          expect(code == BLINK_OK, "code %d", code);
          for (std::size_t i = 0; i < data.size(); ++i) {
            if (!expect(data[i] == i * 6, "kind %d, %ld elements: element %zu", static_cast<int>(kind),
                        static_cast<long>(count), i)) {
              break;
            }
          }
        }
      });
    }
  }
}

void cut_off() {
  const Words words = plan_words(Kind::kOneHop, kRanks, false, 2);
  const auto* bytes = reinterpret_cast<const unsigned char*>(words.data());
  for (std::size_t size = 0; size < words.size() * 8; ++size) {
    const std::unique_ptr<unsigned char[]> part(new unsigned char[size]);  // without a spare byte, for the sanitizer
    std::memcpy(part.get(), bytes, size);
    blink_error error{};
    const PlanHeld plan(blink_plan_read(part.get(), size, &error));
    if (!expect(plan == nullptr && error.code == BLINK_INVALID && error.text[0] != 0, "%zu bytes are a plan", size)) return;
  }
  blink_error error{};
  expect(blink_plan_read(nullptr, 0, &error) == nullptr, "nothing is a plan");
}

// Plans with one flipped bit.
void altered() {
  Words words = plan_words(Kind::kOneHop, kRanks, false, 2);
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (int bit = 0; bit < 64; bit += 7) {
      words[i] ^= std::int64_t{1} << bit;
      blink_error error;
      expect(read(words, error) == nullptr && error.text[0] != 0, "a change of word %zu is not detected", i);
      words[i] ^= std::int64_t{1} << bit;
    }
  }
}

std::int64_t odd_value(std::mt19937_64& random, std::int64_t was) {
  const auto near = [was](std::uint64_t more) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(was) + more);  // wraps around
  };
  const std::int64_t choices[] = {-2, -1, 0, 1, 2, 3, 63, near(1), near(~0ull), near(8), std::int64_t{1} << 24,
                                  std::int64_t{1} << 40, std::int64_t{1} << 62, INT64_MAX, INT64_MIN,
                                  static_cast<std::int64_t>(random())};
  return choices[random() % (sizeof choices / sizeof choices[0])];
}

// Plans with wrong numbers and a correct checksum.
void forged() {
  std::mt19937_64 random(5);
  const Room room(shape(), 4096, 64);
  blink_comm* comm = room.attach(0, false);
  long refused = 0, accepted = 0, created = 0;
  for (int i = 0; i < 10'000 * kEffort; ++i) {
    const Kind kind = kKinds[random() % kKindCount];
    Words words = plan_words(kind, kRanks, random() % 3 == 0,
                             1 + static_cast<std::int64_t>(random() % 3));
    for (bool more = true; more; more = random() % 4 == 0) {
      std::int64_t& word = words[kSummed + random() % (words.size() - kSummed)];
      word = odd_value(random, word);
    }
    sum_up(words);
    blink_error error;
    const PlanHeld plan = read(words, error);
    ++(plan == nullptr ? refused : accepted);
    if (plan == nullptr) {
      expect(error.code == BLINK_INVALID && error.text[0] != 0, "refused without a reason");
      continue;
    }
    const auto count = random() % 3 == 0 ? odd_value(random, 1000) : static_cast<std::int64_t>(random() % 10'000);
    const auto chunk = random() % 3 == 0 ? odd_value(random, 64) : static_cast<std::int64_t>(1 + random() % 5000);
    const blink_binding binding{count, static_cast<std::uint32_t>(random() % 18),
                                static_cast<std::uint32_t>(random() % 64), chunk, static_cast<std::int64_t>(random() % 2)};
    const blink_shape around = shape();
    for (int rank = -1; rank <= kRanks; ++rank) {
      const std::unique_ptr<blink_bound, Free> bound(blink_bind(plan.get(), &around, rank, &binding, &error));
      expect(bound != nullptr || error.text[0] != 0, "not bound, without a reason");
    }
    std::vector<std::int64_t> numbers[4];  // of the blocks of both buffers, without a spare entry
    for (auto& row : numbers) {
      for (int block = 0; block < kRanks; ++block) row.push_back(random() % 8 == 0 ? odd_value(random, 9) : 9);
      row.shrink_to_fit();
    }
    const blink_blocks blocks{numbers[0].data(), numbers[1].data(), numbers[2].data(), numbers[3].data()};
    const auto uneven = blink::bind(*plan, around, 0, binding, &blocks, error);
    expect(uneven != nullptr || error.text[0] != 0, "blocks are not bound, without a reason");
    if (uneven != nullptr) blink_op_destroy(blink_op_create(comm, &uneven->tables));
    const std::unique_ptr<blink_op, Free> op(blink_op_bind(comm, plan.get(), &binding, &error));
    created += op != nullptr;
  }
  expect(refused > 1000 && accepted > 1000 && created > 300, "%ld refused, %ld accepted, of which %ld are operations",
         refused, accepted, created);
  blink_detach(comm);
}

}  // namespace

int main() {
  limit_seconds(290);
  sums();
  cut_off();
  altered();
  forged();
  return verdict();
}
