// The host engine's plans of a few collectives, which plans.py writes, and the rows of each rank for a size.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "../src/op.h"
#include "../src/plan.h"
#include "ranks.h"

namespace blink_test {

// In the order of KINDS in plans.py.
enum class Kind { kOneHop, kOneShot, kTwoTrees, kRing, kBroadcast, kChain, kAllGather, kReduceScatter };
constexpr Kind kKinds[] = {Kind::kOneHop,    Kind::kOneShot, Kind::kTwoTrees,  Kind::kRing,
                           Kind::kBroadcast, Kind::kChain,   Kind::kAllGather, Kind::kReduceScatter};
constexpr unsigned kKindCount = sizeof kKinds / sizeof kKinds[0];

inline bool reduces(Kind kind) {
  return kind != Kind::kBroadcast && kind != Kind::kChain && kind != Kind::kAllGather;
}

using Words = std::vector<std::int64_t>;
constexpr std::size_t kSummed = offsetof(blink_plan_header, checksum) / sizeof(std::int64_t) + 1;

// Writes the correct checksum into a plan's words.
inline void sum_up(Words& words) {
  const std::uint64_t sum = blink::checksum(reinterpret_cast<const unsigned char*>(words.data() + kSummed), words.size() - kSummed);
  std::memcpy(&words[kSummed - 1], &sum, sizeof sum);
}

template <class Row>
void append(Words& words, const std::vector<Row>& rows) {
  const auto* first = reinterpret_cast<const std::int64_t*>(rows.data());
  words.insert(words.end(), first, first + rows.size() * sizeof(Row) / sizeof *first);
}

inline const Words& all_plans() {
  static const Words all = [] {
    Words words;
    std::FILE* const file = std::fopen(BLINK_TEST_PLANS, "rb");
    if (file == nullptr) give_up(BLINK_TEST_PLANS);
    for (std::int64_t word; std::fread(&word, sizeof word, 1, file) == 1;) words.push_back(word);
    std::fclose(file);
    return words;
  }();
  return all;
}

// A plan of `kind` in rings of 1 to 3 slots; small messages have their flags inside, and 1 slot.
inline Words plan_words(Kind kind, std::int64_t ranks, bool small, std::int64_t slots) {
  const std::int64_t wanted[] = {static_cast<std::int64_t>(kind), ranks, small, small ? 1 : slots};
  const Words& all = all_plans();
  for (auto row = all.begin(); row != all.end(); row += *row) {
    if (std::equal(wanted, wanted + 4, row + 1)) return {row + 5, row + *row};
  }
  give_up("plans.py writes no such plan");
}

struct Free {
  void operator()(blink_plan* plan) const { blink_plan_free(plan); }
  void operator()(blink_bound* bound) const { blink_bound_free(bound); }
  void operator()(blink_op* op) const { blink_op_destroy(op); }
};
using PlanHeld = std::unique_ptr<blink_plan, Free>;
using BoundHeld = std::unique_ptr<blink_bound, Free>;

inline PlanHeld read(const Words& words, blink_error& error) {
  error = blink_error{};
  return PlanHeld(blink_plan_read(words.data(), words.size() * sizeof(std::int64_t), &error));
}

// The rows of `rank` for this binding, in a segment of this shape; nullptr with an error if they do not fit.
inline BoundHeld bound(Kind kind, const blink_shape& shape, int rank, bool small, std::int64_t slots,
                       const blink_binding& binding, blink_error& error) {
  const PlanHeld plan = read(plan_words(kind, shape.ranks, small, slots), error);
  return BoundHeld(plan == nullptr ? nullptr : blink_bind(plan.get(), &shape, rank, &binding, &error));
}

}  // namespace blink_test
