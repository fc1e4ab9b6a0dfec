// Hand-made chains of three ranks, each block a thread: positions and flags that wrap around, old lines of other
// launches, half-written messages, and the end of launches that cannot complete.
// tests/property/test_generated_programs.py runs whole programs of other shapes, and tests/conformance runs them under
// sanitizers.
// Sanitizers: address, thread.
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <random>
#include <string>

#include "check.h"
#include "test_device_mesh.h"

namespace {

using blink::ends;
using blink::KernelContext;
using blink::Slice;
using blink_test::expect;

constexpr std::uint32_t kNobody = 0xffffffff;
constexpr std::uint32_t kRanks = 3;

// The connections between a rank and its predecessor.
constexpr std::uint32_t up(std::uint32_t child) { return 2 * (child - 1); }
constexpr std::uint32_t down(std::uint32_t child) { return up(child) + 1; }

// An AllReduce: up the chain to rank 0 and down again; otherwise a broadcast from rank 0.
template <bool kReduces, class Wire>
BLINK_DEVICE void run(KernelContext<Wire>& context, std::uint32_t rank, std::uint32_t) {
  context.program(kRanks, 1);
  const bool root = rank == 0;
  const bool leaf = rank == kRanks - 1;
  const Slice& slice = context.slice(0, 0, 0, 1, 1, 1);
  if (root) {
    context.open(up(1), down(1));
  } else if (leaf) {
    context.open(up(rank), down(rank));
  } else {
    context.open(up(rank + 1), down(rank + 1), up(rank), down(rank));
  }
  const Word upward = kRanks - 1 - rank;
  const Word downward = rank + (kReduces ? kRanks - 1 : 0);
  const Word end = blink::latest(slice.chunks + upward, slice.chunks + downward);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    if (kReduces) {
      const Word k = tick - upward;
      if (leaf) {
        context.send(slice, k, ends(0));
      } else if (root) {
        context.recv_reduce_copy_send(slice, k, ends(0), 0, ends(1), blink::complete);
      } else {
        context.recv_reduce_send(slice, k, ends(0), 1, ends(2), blink::partial);
      }
    }
    const Word k = tick - downward;
    if (leaf) {
      context.recv(slice, k, 1);
    } else if (!root) {
      context.recv_copy_send(slice, k, 3, ends(1));
    } else if (!kReduces) {
      context.copy_send(slice, k, ends(1));
    }
  }
  context.close();
}

}  // namespace

BLINK_ENTRY(chain_simple, Simple, run<false>, run<true>)
BLINK_ENTRY(chain_ll, LL, run<false>, run<true>)
BLINK_ENTRY(chain_ll128, LL128, run<false>, run<true>)

namespace {

// A star: rank 0 reduces all messages with its own data and sends the result back, over more ends than an order's words
// fit.
constexpr std::uint32_t kLeaves = 11;

template <class Wire>
BLINK_DEVICE void run_star(KernelContext<Wire>& context, std::uint32_t rank, std::uint32_t) {
  context.program(kLeaves + 1, 1);
  const Slice& slice = context.slice(0, 0, 0, 1, 1, 1);
  if (rank == 0) {
    context.open(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21);
  } else {
    context.open(rank - 1, kLeaves + rank - 1);
  }
  for (Word tick = 0; tick < slice.chunks + 1 && context.running(); ++tick) {
    if (rank == 0) {
      context.recv_reduce_copy_send(slice, tick, ends(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 3,
                                    ends(11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21), blink::complete);
    } else {
      context.send(slice, tick, ends(0));
      context.recv(slice, tick - 1, 1);
    }
  }
  context.close();
}

}  // namespace

BLINK_ENTRY(star_simple, Simple, run_star)
BLINK_ENTRY(star_ll, LL, run_star)
BLINK_ENTRY(star_ll128, LL128, run_star)

namespace {

using Values = std::vector<std::uint32_t>;
using Entry = void (*)(const Call*, std::uint32_t);

// Parameters of the current launch; entries get only a call and a block.
bool in_place = false;
bool reduces = false;
std::uint32_t delay_ms[kRanks] = {};  // kNobody: the rank does not launch

template <Entry kEntry>
void in_time(const Call* call, std::uint32_t block) {
  if (delay_ms[call->rank] == kNobody) return;
  if (delay_ms[call->rank] > 0) linger(delay_ms[call->rank]);
  kEntry(call, block);
}
const Entry kEntries[] = {in_time<chain_simple>, in_time<chain_ll>, in_time<chain_ll128>};

struct Run {
  Mesh mesh;
  Values inputs[kRanks], outputs[kRanks];
  double timeout_s = 50;
  std::uint32_t parts;

  explicit Run(const Geometry& geometry)
      : mesh(kRanks, {{1, 0}, {0, 1}, {2, 1}, {1, 2}}, geometry), parts(geometry.parts) {}

  // Returns the result of blink_launch, with `parts` parts.
  int launch(std::uint32_t wire, Word chunk_bytes, Word timeout_ns) {
    std::vector<Call> calls;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      outputs[rank] = in_place ? inputs[rank] : Values(inputs[0].size(), 0x11111111);
      Call call = mesh.call(rank);
      call.input = reinterpret_cast<const char*>((in_place ? outputs : inputs)[rank].data());
      call.output = reinterpret_cast<char*>(outputs[rank].data());
      call.count = inputs[0].size();
      call.chunk_bytes = chunk_bytes;
      call.timeout_ns = timeout_ns;
      call.parts = parts;
      call.program = reduces ? 1 : 0;
      calls.push_back(call);
    }
    return launch_blocks(kEntries[wire], calls.data(), kRanks, parts, timeout_s);
  }

  void expect_right(std::uint32_t wire, Word chunk_bytes, const std::string& what) {
    const int code = launch(wire, chunk_bytes, 20u * 1000000000ull);
    expect(code == 0, "%s, wire %u: the launch returned %d", what.c_str(), wire, code);
    Values wanted = inputs[0];
    for (std::size_t i = 0; reduces && i < wanted.size(); ++i) wanted[i] += inputs[1][i] + inputs[2][i];
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      expect(outputs[rank] == wanted, "%s, wire %u, %zu elements: rank %u has others", what.c_str(), wire,
             wanted.size(), rank);
    }
  }
};

// A launch of any kind with any number of parts, and data that look like flags.
void test_any(Run& run, std::mt19937& random, const std::string& what) {
  const Geometry& geometry = run.mesh.geometry;
  const std::uint32_t wire = random() % 3;
  const Word capacities[] = {geometry.slot_bytes, geometry.line_bytes / 2, geometry.line_bytes / 128 * 120};
  run.parts = 1 + static_cast<std::uint32_t>(random() % geometry.parts);
  const std::size_t part = random() % geometry.parts;
  const auto now = static_cast<std::uint32_t>(run.mesh.end(1, up(1)).position[part * blink::kStride]);
  const std::size_t count = random() % 900;
  for (Values& values : run.inputs) {
    values.clear();
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t value = random() % 4 + 1;
      values.push_back(random() % 4 == 0 ? value : (random() % 2 << 31 | (now + value)));
    }
  }
  reduces = random() % 2 == 0;
  in_place = random() % 2 == 0;
  if (random() % 5 == 0) delay_ms[random() % kRanks] = 2;
  run.expect_right(wire, (random() % (capacities[wire] / 16) + 1) * 16, what);
  for (std::uint32_t& delay : delay_ms) delay = 0;
  reduces = in_place = false;
}

// Flags wrap around: from far below to far above every boundary, with all wires alternating on the same connections.
void test_wrap(std::mt19937& random) {
  for (const Word boundary : {Word{1} << 30, Word{1} << 31, Word{1} << 32, Word{3} << 31, Word{1} << 63}) {
    for (std::uint32_t slots = 2; slots <= 3; ++slots) {
      for (std::uint32_t parts = 1; parts <= 2; ++parts) {
        Run run(parts == 1 ? Geometry{1, slots, 4096, 4096} : Geometry{2, slots, 256, 384});
        run.mesh.pretend(boundary - 20);
        for (int launch = 0; launch < (kEmulated ? 6 : 20) && blink_test::failures < 5; ++launch) {
          test_any(run, random, "launch " + std::to_string(launch) + " around " + std::to_string(boundary));
        }
      }
    }
  }
}

void test_star(std::uint32_t wire) {
  const Entry entries[] = {star_simple, star_ll, star_ll128};
  Mesh::Pairs pairs;
  for (std::uint32_t leaf = 1; leaf <= kLeaves; ++leaf) pairs.push_back({leaf, 0});
  for (std::uint32_t leaf = 1; leaf <= kLeaves; ++leaf) pairs.push_back({0, leaf});
  Mesh mesh(kLeaves + 1, pairs, {1, 2, 256, 384});
  std::vector<Values> inputs(kLeaves + 1), outputs(kLeaves + 1);
  Values wanted(150, 0);
  std::vector<Call> calls;
  for (std::uint32_t rank = 0; rank <= kLeaves; ++rank) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      inputs[rank].push_back(static_cast<std::uint32_t>(i) * 13 + rank);
      wanted[i] += inputs[rank][i];
    }
    outputs[rank].resize(wanted.size());
    Call call = mesh.call(rank);
    call.input = reinterpret_cast<const char*>(inputs[rank].data());
    call.output = reinterpret_cast<char*>(outputs[rank].data());
    call.count = wanted.size();
    call.chunk_bytes = 176;
    calls.push_back(call);
  }
  const int code = launch_blocks(entries[wire], calls.data(), kLeaves + 1, 1, 50);
  expect(code == 0, "a star, wire %u: the launch returned %d", wire, code);
  for (std::uint32_t rank = 0; rank <= kLeaves; ++rank) {
    expect(outputs[rank] == wanted, "a star, wire %u: rank %u has others", wire, rank);
  }
}

// Lines that were written one round of flags ago do not look new: for any wires used since, the slots have been
// cleared.
void test_stale_flags() {
  constexpr std::uint32_t kSlots = 3;
  for (std::uint32_t wire = 0; wire < 3; ++wire) {
    Run run({1, kSlots, 256, 384});
    const Word sweeps = Word{1} << 30;
    const Word later = sweeps + 300;
    run.mesh.pretend(sweeps);
    run.mesh.for_lines([&](Word* words, std::size_t slot) {
      const Word message = later + (slot + kSlots - later % kSlots) % kSlots;
      for (std::size_t i = 0; i < 384 / 8; ++i) words[i] = (message << 32) | Word{1} << 63 | 0xbad;
    });
    run.inputs[0].assign(64, 7);
    run.expect_right(wire, 16, "sweeps");  // at least one chunk per slot
    run.mesh.pretend(later);
    delay_ms[0] = 20;
    run.expect_right(1, 192, "after a round of flags");
    delay_ms[0] = 0;
  }
}

// LL128 has data at the places of LL's flags. Here they equal the flags that LL waits for next, and LL's sender is
// late.
void test_left_behind() {
  constexpr Word kPosition = 50;
  constexpr Word kChunk = 352;
  Run run({1, 2, 256, 384});
  run.mesh.pretend(kPosition);
  for (std::uint32_t i = 0; i < 2 * kChunk / 4; ++i) {
    run.inputs[0].push_back(0x80000000u | (kPosition + 2 + i / (kChunk / 4)));
  }
  run.expect_right(2, kChunk, "data that look like flags");
  run.inputs[0].assign(2 * kChunk / 8, 7);
  delay_ms[0] = 20;
  run.expect_right(1, kChunk / 2, "LL after LL128's data");
  delay_ms[0] = 0;
}

// A launch of LL128 with one part leaves data that equal the flags that LL's second part waits for next, whose sender
// is late: parts use the same lines for every number of parts.
void test_fewer_parts() {
  constexpr Word kPosition = 50;
  constexpr Word kChunk = 352;
  Run run({2, 2, 256, 384});
  run.mesh.pretend(kPosition);
  for (std::uint32_t i = 0; i < 2 * kChunk / 4; ++i) {
    run.inputs[0].push_back(0x80000000u | (kPosition + i / (kChunk / 4)));
  }
  run.parts = 1;
  run.expect_right(2, kChunk, "one part's data that look like flags");
  run.inputs[0].assign(2 * kChunk / 4, 7);
  run.parts = 2;
  delay_ms[0] = 20;
  run.expect_right(1, kChunk / 2, "two parts after one");
  delay_ms[0] = 0;
}

// Only the last rank launches, and finds a part of its message.
void test_half_messages() {
  constexpr Word kPosition = 90;
  const Word ll = (kPosition << 32) | Word{1} << 63;
  struct Row {
    std::uint32_t wire;
    Word first, second, last;  // of a line: the halves of its first 16 bytes, and its last 8 bytes
    bool whole;
  };
  const Row rows[] = {
      {1, 0, 0, 0, false},         {1, ll | 1, 2, 0, false},         {1, 1, ll | 2, 0, false},
      {1, ll | 1, ll | 2, 0, true}, {2, 1, 2, 0, false},              {2, 1, 2, kPosition, false},
      {2, 1, 2, ll | kPosition, false}, {2, 0x200000001, 2, kPosition + 1, true},
  };
  delay_ms[0] = delay_ms[1] = kNobody;
  for (const Row& row : rows) {
    Run run({1, 2, 256, 384});
    run.mesh.pretend(kPosition);
    const Word before = row.wire == 2 ? 2 * 384 : 0;  // LL's messages
    auto* const line = reinterpret_cast<Word*>(run.mesh.end(2, down(2)).lines + before);
    line[0] = row.first;
    line[1] = row.second;
    line[15] = row.last;
    run.inputs[0] = {0, 0};
    const int code = run.launch(row.wire, 128, 20000000);
    const bool right = row.whole ? code == 0 && run.outputs[2] == Values{1, 2} : code == 1;
    expect(right, "wire %u, row %d: %d", row.wire, static_cast<int>(&row - rows), code);
  }
  delay_ms[0] = delay_ms[1] = 0;
}

// Rank `missing` of the chain does not launch: checks the others' status and their positions.
void test_missing(std::uint32_t wire, std::uint32_t missing, bool by_abort) {
  constexpr Word kSlots = 2;
  constexpr Word kPassed = 77;
  Run run({1, kSlots, 256, 512});
  run.mesh.pretend(kPassed);
  run.inputs[0].assign(1024, 0);
  if (by_abort) run.timeout_s = 0.05;
  delay_ms[missing] = kNobody;
  const auto begin = std::chrono::steady_clock::now();
  const int code = run.launch(wire, 128, by_abort ? 0 : 50000000);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  delay_ms[missing] = 0;
  expect(code == 1 && took.count() < 20, "wire %u without rank %u: %d after %g s", wire, missing, code, took.count());
  expect((run.mesh.aborts[0] != 0) == by_abort, "abort words are %u", run.mesh.aborts[0]);
  const std::uint32_t reason = by_abort ? blink::kAborted : blink::kTimedOut;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    const blink::Status& status = run.mesh.statuses[rank];
    if (rank == missing) {
      expect(status.code == 0, "a rank that does not launch has no status");
      continue;
    }
    // Without rank 0 no rank has data; without 1 rank 0 fills its slots; without 2 rank 1 does, and so does rank 0,
    // which waits for the slots that rank 1 could not free.
    const bool sending = rank < missing;
    const std::uint32_t connection = sending ? down(rank + 1) : down(rank);
    const Word passed = kPassed + (sending ? kSlots * (missing - rank) : 0);
    expect(status.code == reason && status.sending == (sending ? 1u : 0u) && status.channel == 0,
           "wire %u without %u: rank %u says code %u sending %u channel %u", wire, missing, rank, status.code,
           status.sending, status.channel);
    expect(status.connection == connection && status.position == passed,
           "wire %u without %u: rank %u says connection %u position %" PRIu64 ", expected %u and %" PRIu64, wire,
           missing, rank, status.connection, static_cast<std::uint64_t>(status.position), connection,
           static_cast<std::uint64_t>(passed));
    const Word stored = *run.mesh.end(rank, connection).position;
    expect(stored == passed, "wire %u without %u: rank %u stored position %" PRIu64, wire, missing, rank,
           static_cast<std::uint64_t>(stored));
  }
}

// Several blocks give up at once: the status is that of one of them, complete.
void test_one_status() {
  Run run({6, 2, 256, 512});
  run.inputs[0].assign(16384, 0);
  delay_ms[1] = delay_ms[2] = kNobody;
  expect(run.launch(0, 128, 20000000) == 1, "the root gave up");
  delay_ms[1] = delay_ms[2] = 0;
  const blink::Status& status = run.mesh.statuses[0];
  expect(status.code == blink::kTimedOut && status.connection == down(1) && status.sending == 1 && status.position == 2,
         "the status is whole: code %u connection %u", status.code, status.connection);
}

}  // namespace

int main() {
  std::mt19937 random(11);
  test_wrap(random);
  for (std::uint32_t wire = 0; wire < 3; ++wire) test_star(wire);
  test_stale_flags();
  test_left_behind();
  test_fewer_parts();
  test_half_messages();
  for (std::uint32_t wire = 0; wire < 3; ++wire) {
    for (std::uint32_t missing = 0; missing < kRanks; ++missing) {
      test_missing(wire, missing, false);
      test_missing(wire, missing, true);
    }
  }
  test_one_status();
  return blink_test::verdict();
}
