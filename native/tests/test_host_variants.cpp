// The selection of variants: rank 0's policy on artificial times, and the same variant on all ranks in every situation.
// Sanitizers: address, thread.
#include <random>
#include <vector>

#include "../src/variants.h"
#include "check.h"
#include "plans.h"
#include "ranks.h"

namespace {

using namespace blink_test;
using blink::VariantTrials;

// Counts the runs of each variant in `calls` calls, where variant v takes ns[v] ± 10 %.
std::vector<int> ran(VariantTrials& trials, const std::vector<std::int64_t>& ns, int calls, std::mt19937& random) {
  std::vector<int> count(ns.size(), 0);
  for (int call = 0; call < calls; ++call) {
    const VariantTrials::Order order = trials.next();
    ++count[static_cast<std::size_t>(order.variant)];
    const std::int64_t took = ns[static_cast<std::size_t>(order.variant)];
    if (order.timed) trials.observe(order.variant, took + static_cast<std::int64_t>(random()) % (took / 10 + 1));
  }
  return count;
}

void test_the_fastest_runs() {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> ns;
    for (unsigned v = 0; v < 2 + random() % 14; ++v) ns.push_back(1000 + static_cast<std::int64_t>(random() % 100'000));
    const auto fastest = static_cast<std::size_t>(std::min_element(ns.begin(), ns.end()) - ns.begin());
    VariantTrials trials(static_cast<int>(ns.size()));
    ran(trials, ns, static_cast<int>(ns.size()) * 5, random);
    const std::vector<int> count = ran(trials, ns, 1024, random);
    const auto most = static_cast<std::size_t>(std::max_element(count.begin(), count.end()) - count.begin());
    expect(ns[most] <= ns[fastest] * 115 / 100, "variant %zu runs, which takes %ld of %ld", most, ns[most], ns[fastest]);
  }
}

void test_slow_ones_are_tried_seldom_but_not_never() {
  std::mt19937 random(6);
  VariantTrials trials(3);
  ran(trials, {1000, 1200, 9000}, 1100, random);  // the first trials have shorter intervals
  const std::vector<int> count = ran(trials, {1000, 1200, 9000}, 16 * 522, random);
  expect(count[0] > 15 * 512, "the fastest runs %d times", count[0]);
  expect(count[1] >= 75 && count[1] <= 85, "one that is not far behind is tried %d times", count[1]);
  expect(count[2] == 10, "one that is far behind is tried %d times", count[2]);
}

void test_what_changes_is_noticed() {
  std::mt19937 random(7);
  VariantTrials trials(2);
  ran(trials, {1000, 1300}, 2000, random);
  ran(trials, {1400, 900}, 700, random);  // at most until the next trial
  expect(ran(trials, {1400, 900}, 400, random)[1] > 390, "the variant that became faster runs");
}

void test_a_bad_start_is_soon_forgotten() {
  std::mt19937 random(9);
  VariantTrials trials(2);
  ran(trials, {1000, 5000}, 12, random);
  ran(trials, {1000, 600}, 50, random);  // until the second trial
  expect(ran(trials, {1000, 600}, 50, random)[1] == 50, "the variant that was slow at first runs");
}

void test_equals_stay() {
  std::mt19937 random(8);
  VariantTrials trials(2);
  ran(trials, {1000, 1000}, 100, random);
  std::vector<int> chosen;
  for (int round = 0; round < 20; ++round) chosen.push_back(ran(trials, {100'000, 100'000}, 300, random)[0] > 150);
  int changes = 0;
  for (std::size_t i = 1; i < chosen.size(); ++i) changes += chosen[i] != chosen[i - 1];
  expect(changes < 6, "equal variants alternate %d times", changes);
}

// An AllReduce in chunks of three sizes.
blink_op* with_variants(blink_comm* comm, const blink_plan* plan, std::int64_t count) {
  blink_error error{};
  blink_op* op = nullptr;
  for (const std::int64_t chunk : {64, 256, 1024}) {
    const blink_binding binding{count, BLINK_FLOAT32, BLINK_SUM, chunk, 0};
    blink_op* const bound = blink_op_bind(comm, plan, &binding, &error);
    if (!expect(bound != nullptr, "a plan is not bound: %s", error.text)) std::exit(1);
    if (op == nullptr) {
      op = bound;
    } else {
      expect(blink_op_add_variant(op, bound) == BLINK_OK, "a variant is refused");
    }
  }
  return op;
}

// Measurements of private buffers do not apply to shared ones, which are timed at once.
void shared_after_private(blink_comm* comm, int rank, const blink_plan* plan, float* in_heap) {
  std::vector<float> output(500, 1.0f);
  blink_op* const op = with_variants(comm, plan, 500);
  bool timed = false;
  for (int call = 0; call < 46; ++call) {
    float* const data = call < 40 ? output.data() : in_heap;
    std::fill(data, data + 500, 1.0f);
    const int code = blink_op_run(op, data, data, 0, 1, kPatience);
    if (!expect(code == BLINK_OK, "rank %d, call %d: code %d", rank, call, code)) break;
    for (std::size_t line = 0; line < blink::kVariantLines && rank == 0 && call >= 40; ++line) {
      const blink::VariantLine& here = comm->segment().variant(line);
      if (here.key.load() != 0) timed = timed || (here.decision.load() >> 8 & 1) != 0;
    }
  }
  expect(rank != 0 || timed, "six calls with shared tensors, and none is timed");
  blink_op_destroy(op);
}

// A program that alternates between in-place and other calls: every variant is tried nevertheless.
void turns(blink_comm* comm, int rank, const blink_plan* plan) {
  std::vector<float> input(500, 1.0f), output(500, 1.0f);
  blink_op* const op = with_variants(comm, plan, 500);
  std::vector<int> chosen(16, 0);
  for (int call = 0; call < 300; ++call) {
    const int code = blink_op_run(op, call % 2 == 0 ? input.data() : output.data(), output.data(), 0, 1, kPatience);
    if (!expect(code == BLINK_OK, "rank %d, call %d: code %d", rank, call, code)) break;
    for (std::size_t line = 0; line < blink::kVariantLines && rank == 0; ++line) {
      const blink::VariantLine& here = comm->segment().variant(line);
      if (here.key.load() != 0) ++chosen[here.decision.load() >> 4 & 15];
    }
  }
  expect(rank != 0 || (chosen[1] > 0 && chosen[2] > 0), "of three variants %d, %d and %d calls", chosen[0], chosen[1], chosen[2]);
  blink_op_destroy(op);
}

// Different signatures end the calls, so a rank with another variant is detected. Single ranks recreate the operation,
// until the lines in shared memory are used up.
void many_calls(blink_comm* comm, int rank, const blink_plan* plan) {
  std::mt19937 alone(static_cast<unsigned>(rank) + 40);
  std::vector<float> input(600, static_cast<float>(rank + 1)), output(600);
  blink_error error{};
  const auto right = [&](blink_op* op, std::int64_t count, int call) {
    const bool in_place = alone() % 2 == 0;
    std::fill(output.begin(), output.end(), static_cast<float>(rank + 1));
    if (alone() % 16 == 0) usleep(alone() % 200);
    const int code = blink_op_run(op, in_place ? output.data() : input.data(), output.data(), 0, 1, kPatience);
    blink_last_error(comm, &error);
    bool all = expect(code == BLINK_OK, "rank %d, call %d: code %d %s", rank, call, code, error.text);
    for (std::int64_t i = 0; i < count && all; ++i) all = output[static_cast<std::size_t>(i)] == 6.0f;  // 1 + 2 + 3
    return expect(all, "rank %d, call %d: a wrong sum", rank, call);
  };
  blink_op* op = with_variants(comm, plan, 500);
  for (int call = 0; call < 600; ++call) {
    if (!right(op, 500, call)) return;
    if (alone() % 50 == 0) {
      blink_op_destroy(op);
      op = with_variants(comm, plan, 500);
    }
  }
  blink_op_destroy(op);
  for (int call = 0; call < 300; ++call) {
    op = with_variants(comm, plan, 1 + call);
    const bool fine = right(op, 1 + call, call) && right(op, 1 + call, call);
    blink_op_destroy(op);
    if (!fine) return;
  }
}

void test_all_ranks_run_the_same() {
  const Words words = plan_words(Kind::kRing, 3, false, 2);
  blink_error error{};
  blink_plan* const plan = blink_plan_read(words.data(), words.size() * sizeof words[0], &error);
  if (!expect(plan != nullptr, "no plan: %s", error.text)) return;
  for (const int cores : {1, 64}) {
    const Room room({3, 60, 64 << 10, 6 * 4160, 64}, 4096, cores);
    as_threads(room, [&](blink_comm* comm, int rank) { many_calls(comm, rank, plan); });
    const Room other({3, 60, 64 << 10, 6 * 4160, 64}, 4096, cores);
    as_threads(other, [&](blink_comm* comm, int rank) { turns(comm, rank, plan); });
    const Room third({3, 60, 64 << 10, 6 * 4160, 64}, 4096, cores);
    as_threads(third, [&](blink_comm* comm, int rank) {
      shared_after_private(comm, rank, plan, reinterpret_cast<float*>(third.heap(rank)));
    });
  }
  blink_plan_free(plan);
}

}  // namespace

int main() {
  limit_seconds(200);
  test_the_fastest_runs();
  test_slow_ones_are_tried_seldom_but_not_never();
  test_a_bad_start_is_soon_forgotten();
  test_what_changes_is_noticed();
  test_equals_stay();
  test_all_ranks_run_the_same();
  return verdict();
}
