// The simulator's kernel on random workloads, with both ways of sharing, with and without a trace. The sanitizers check
// accesses outside the arrays and shared state between runs. Python tests check times and traces, with the same bits as
// the kernel that defines them.
// Sanitizers: address, thread.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "blink/simulate.h"
#include "check.h"

namespace {

using blink_test::expect;

// A workload that owns its arrays. Each is a separate allocation without a spare entry.
struct Workload {
  std::vector<std::int32_t> chunks, actor_stream, receives_of{0}, receives, sends_of{0}, sends;
  std::vector<double> bytes, last_bytes, launch_s, pace_s_per_byte, start_s;
  std::vector<std::int32_t> tail, head, hop_stream, pool, slots, frees, path_of{0}, path;
  std::vector<double> latency_s, signal_s, weight, rates;
  std::vector<std::int32_t> engines;
  std::int64_t streams = 0;

  void actor(std::int32_t count, double size, double last, std::int32_t stream, double launch, double pace,
             double start) {
    chunks.push_back(count);
    bytes.push_back(size);
    last_bytes.push_back(last);
    actor_stream.push_back(stream);
    launch_s.push_back(launch);
    pace_s_per_byte.push_back(pace);
    start_s.push_back(start);
  }

  void hop(std::size_t from, std::size_t to, const std::vector<std::int32_t>& links, std::int32_t stream,
           std::int32_t of_pool, std::int32_t slot_count, double latency, double signal, double part) {
    tail.push_back(static_cast<std::int32_t>(from));
    head.push_back(static_cast<std::int32_t>(to));
    path.insert(path.end(), links.begin(), links.end());
    path_of.push_back(static_cast<std::int32_t>(path.size()));
    hop_stream.push_back(stream);
    pool.push_back(of_pool);
    slots.push_back(slot_count);
    frees.push_back(-1);
    latency_s.push_back(latency);
    signal_s.push_back(signal);
    weight.push_back(part);
  }

  // Gives every actor its hops, in any order. Some outgoing hops read incoming ones, and free their slots.
  void connect(std::mt19937_64& random) {
    for (std::size_t from = 0; from < tail.size(); ++from) {
      for (std::size_t into = 0; into < head.size() && frees[from] < 0; ++into) {
        const auto hop = static_cast<std::int32_t>(into);
        const bool is_read = std::find(frees.begin(), frees.end(), hop) != frees.end();
        if (head[into] == tail[from] && !is_read && random() % 4 == 0) frees[from] = hop;
      }
    }
    for (std::size_t a = 0; a < chunks.size(); ++a) {
      ends(head, a, receives, receives_of, random);
      ends(tail, a, sends, sends_of, random);
    }
    for (auto* v : {&receives, &sends, &path}) v->shrink_to_fit();
  }

  static void ends(const std::vector<std::int32_t>& side, std::size_t actor, std::vector<std::int32_t>& rows,
                   std::vector<std::int32_t>& starts, std::mt19937_64& random) {
    const std::size_t first = rows.size();
    for (std::size_t h = 0; h < side.size(); ++h) {
      if (side[h] == static_cast<std::int32_t>(actor)) rows.push_back(static_cast<std::int32_t>(h));
    }
    std::shuffle(rows.begin() + static_cast<std::ptrdiff_t>(first), rows.end(), random);
    starts.push_back(static_cast<std::int32_t>(rows.size()));
  }

  blink_workload view() const {
    return {static_cast<std::int64_t>(chunks.size()),
            static_cast<std::int64_t>(tail.size()),
            streams,
            static_cast<std::int64_t>(engines.size()),
            static_cast<std::int64_t>(rates.size()),
            chunks.data(), bytes.data(), last_bytes.data(), actor_stream.data(), launch_s.data(),
            pace_s_per_byte.data(), start_s.data(), receives_of.data(), receives.data(), sends_of.data(), sends.data(),
            tail.data(), head.data(), hop_stream.data(), pool.data(), slots.data(), frees.data(),
            latency_s.data(), signal_s.data(), weight.data(), path_of.data(), path.data(), rates.data(), engines.data()};
  }

  std::int64_t transfers() const {
    std::int64_t sum = 0;
    for (const auto from : tail) sum += chunks[from];
    return sum;
  }
  std::int64_t executions() const {
    std::int64_t sum = 0;
    for (std::size_t a = 0; a < chunks.size(); ++a) sum += actor_stream[a] >= 0 ? chunks[a] : 0;
    return sum;
  }
};

// The complete result of a run.
struct Said {
  int code = -1;
  blink_outcome outcome{};
  std::vector<double> actor_s;
  std::array<std::vector<double>, 4> seconds;       // begin, move, end, held
  std::array<std::vector<std::int32_t>, 5> numbers;  // hop, actor, chunk, cause, holder

  bool same(const Said& other) const {
    return code == other.code && outcome.seconds == other.outcome.seconds &&
           outcome.transfers == other.outcome.transfers && outcome.executions == other.outcome.executions &&
           outcome.events == other.outcome.events && outcome.stuck == other.outcome.stuck && actor_s == other.actor_s;
  }
  bool same_trace(const Said& other) const {
    return seconds == other.seconds && numbers == other.numbers;
  }
};

Said run(const Workload& workload, bool fair, bool traced) {
  Said said;
  const blink_workload view = workload.view();
  said.actor_s.assign(workload.chunks.size(), -1.0);
  said.outcome.actor_s = said.actor_s.data();
  if (!traced) {
    said.code = blink_simulate(&view, fair, &said.outcome, nullptr);
    return said;
  }
  const auto tasks = static_cast<std::size_t>(workload.transfers() + workload.executions());
  for (auto& column : said.seconds) column.assign(tasks, -7.0);
  for (auto& column : said.numbers) column.assign(tasks, -7);
  auto& [begin, move, end, held] = said.seconds;
  auto& [hop, actor, chunk, cause, holder] = said.numbers;
  const blink_trace trace{hop.data(), actor.data(), chunk.data(),  begin.data(), move.data(),
                          end.data(), cause.data(), holder.data(), held.data()};
  said.code = blink_simulate(&view, fair, &said.outcome, &trace);
  return said;
}

// Layers of actors; hops lead to later layers, so that one slot is enough for progress. With `coarse` costs have few
// values, so that many events coincide.
Workload random_workload(std::mt19937_64& random, bool coarse) {
  const auto upto = [&](int least, int most) { return least + static_cast<int>(random() % (most - least + 1)); };
  const auto cost = [&](double most) {
    return coarse ? most * upto(0, 2) : most * static_cast<double>(random() >> 11) * 0x1p-53;
  };
  Workload w;
  const int layers = upto(2, 4), chunks = upto(0, 6), links = upto(1, 5), pools = upto(0, 3);
  std::vector<int> layer_of;
  for (int layer = 0; layer < layers; ++layer) {
    for (int count = upto(1, 4); count > 0; --count) layer_of.push_back(layer);
  }
  const int streams = upto(1, 8);
  w.streams = streams;
  for (std::size_t a = 0; a < layer_of.size(); ++a) {
    const double size = coarse ? 4.0 * upto(0, 2) : upto(0, 1'000'000);
    w.actor(chunks, size, coarse ? 4.0 : size * upto(1, 4) / 4, upto(0, 1) ? upto(0, streams - 1) : -1, cost(1e-5),
            cost(1e-10), cost(2e-5));
  }
  for (int link = 0; link < links; ++link) w.rates.push_back(coarse ? 4.0 : 1e9 + cost(5e10));
  for (int pool = 0; pool < pools; ++pool) w.engines.push_back(upto(1, 2));
  for (std::size_t to = 0; to < layer_of.size(); ++to) {
    for (std::size_t from = 0; from < to; ++from) {
      if (layer_of[from] == layer_of[to] || upto(0, 2) == 0) continue;
      std::vector<std::int32_t> path;
      for (int link = 0; link < links; ++link) {
        if (upto(0, 2) == 0) path.push_back(link);
      }
      std::shuffle(path.begin(), path.end(), random);
      w.hop(from, to, path, upto(0, streams - 1), upto(-1, pools - 1), upto(1, 3), cost(1e-5),
            upto(0, 1) ? cost(5e-6) : 0.0, coarse ? 1.0 : 1e-3 + cost(1e3));
    }
  }
  w.connect(random);
  return w;
}

// Checks the invariants of a complete run.
void check_outcome(const Workload& w, const Said& said, const char* what) {
  expect(said.code == 0 && said.outcome.stuck == -1, "%s: incomplete", what);
  expect(said.outcome.transfers == w.transfers(), "%s: %" PRId64 " transfers", what, said.outcome.transfers);
  expect(said.outcome.executions == w.executions(), "%s: %" PRId64 " executions", what, said.outcome.executions);
  // Each transfer lands and arrives, begins to move if links are fair, otherwise reaches each link after its first.
  std::int64_t longest = 1;
  for (std::size_t h = 0; h < w.tail.size(); ++h)
    longest = std::max<std::int64_t>(longest, w.path_of[h + 1] - w.path_of[h]);
  const std::int64_t most = static_cast<std::int64_t>(w.chunks.size()) + (2 + longest) * w.transfers() + w.executions();
  expect(said.outcome.events <= most, "%s: %" PRId64 " events, expected at most %" PRId64, what, said.outcome.events,
         most);
}

void random_workloads() {
  std::mt19937_64 random(20);
  for (int round = 0; round < 1000 * blink_test::kEffort; ++round) {
    const Workload w = random_workload(random, round % 2 == 0);
    for (const bool fair : {false, true}) {
      const std::string what = "workload " + std::to_string(round) + (fair ? ", fair" : ", fifo");
      const Said traced = run(w, fair, true);
      check_outcome(w, traced, what.c_str());
      expect(traced.same(run(w, fair, false)), "%s: a trace changes nothing", what.c_str());
      const Said again = run(w, fair, true);
      expect(traced.same(again) && traced.same_trace(again), "%s: the same run twice", what.c_str());
    }
  }
}

void nothing_to_do() {
  const Workload empty;
  for (const bool fair : {false, true}) {
    const Said said = run(empty, fair, true);
    expect(said.code == 0 && said.outcome.seconds == 0.0 && said.outcome.events == 0, "an empty workload");
  }
}

// Runs that get stuck report the place, and write no more entries than there can be tasks.
void not_live() {
  for (const bool fair : {false, true}) {
    std::mt19937_64 random(21);
    for (int round = 0; round < 200 * blink_test::kEffort; ++round) {
      Workload w = random_workload(random, round % 2 == 0);
      if (w.slots.empty() || w.chunks[0] == 0) continue;
      w.slots[random() % w.slots.size()] = 0;
      const Said said = run(w, fair, true);
      expect(said.code == 1, "round %d: no slot at all", round);
      expect(said.outcome.stuck >= 0 && said.outcome.stuck < static_cast<std::int64_t>(w.chunks.size()) &&
                 said.outcome.stuck_chunk < w.chunks[said.outcome.stuck],
             "round %d: stuck at actor %" PRId64 ", chunk %" PRId64, round, said.outcome.stuck,
             said.outcome.stuck_chunk);
      expect(said.outcome.transfers < w.transfers(), "round %d: all transfers were done", round);
    }
  }
}

// Runs are independent: threads may simulate at the same time.
void side_by_side() {
  std::mt19937_64 random(22);
  std::vector<Workload> workloads;
  std::vector<Said> alone;
  for (int i = 0; i < 16; ++i) {
    workloads.push_back(random_workload(random, i % 2 == 0));
    alone.push_back(run(workloads.back(), i % 4 < 2, true));
  }
  std::vector<Said> together(workloads.size());
  std::vector<std::thread> threads;
  for (std::size_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (std::size_t i = first; i < workloads.size(); i += 4) together[i] = run(workloads[i], i % 4 < 2, true);
    });
  }
  for (auto& thread : threads) thread.join();
  for (std::size_t i = 0; i < workloads.size(); ++i) {
    expect(together[i].same(alone[i]) && together[i].same_trace(alone[i]), "workload %zu beside others", i);
  }
}

}  // namespace

int main() {
  nothing_to_do();
  random_workloads();
  not_live();
  side_by_side();
  return blink_test::verdict();
}
