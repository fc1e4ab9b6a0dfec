// Whole programs of several ranks, each block a thread: chains, stars, rings and any tree, all wires by turns on the
// same connections, for every count of slots and parts, launch after launch; and how launches end that cannot go on.
// Sanitizers: address, thread.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <random>
#include <string>
#include <thread>

#include "../src/kernels.h"
#include "blink/host.h"
#include "check.h"
#include "host/launch.h"
#include "test_device_mesh.h"

namespace {

using blink::ends;
using blink::kNoOwnOperand;
using blink::Slice;
using blink::KernelContext;
using blink_test::expect;

constexpr std::uint32_t kNobody = 0xffffffff;

enum class Kind { kAllReduce, kReduce, kBroadcast };

// What one rank does in one tree. Connections 2·child upward, 2·child + 1 downward, of each channel.
struct Node {
  std::uint32_t parent = kNobody;
  std::vector<std::uint32_t> children;
  std::uint32_t own_operand = 0;  // kNoOwnOperand: a relay, which neither contributes nor keeps
  std::uint32_t up = 0, down = 0;  // ticks of chunk 0
};

// A share of the block: a tree that carries it from `start` to `stop`.
struct Share {
  std::vector<Node> nodes;
  std::uint32_t root = 0;
  Word start_num, start_den, stop_num, stop_den;
};

struct Plan {
  Kind kind;
  std::uint32_t ranks;
  std::vector<Share> channels;  // one share each
  std::uint32_t contributors;
  Word largest_num = 0, largest_den = 1;  // share, where they differ

  std::uint32_t up(std::uint32_t channel, std::uint32_t child) const { return (channel * ranks + child) * 2; }
  std::uint32_t down(std::uint32_t channel, std::uint32_t child) const { return up(channel, child) + 1; }
};

// The launch at hand; entries get a call and a block only.
const Plan* plan = nullptr;
std::vector<std::uint32_t> delay_ms;  // of ranks; kNobody: does not come at all

template <class Wire>
struct Channel {
  KernelContext<Wire>& context;
  const Node& node;
  Slice slice;

  bool relays() const { return node.own_operand == kNoOwnOperand; }
  bool leads() const { return node.parent == kNobody; }

  // Ends: 0 … children − 1 from them upward, then as many to them downward, then to and from the parent.
  std::uint32_t children() const { return static_cast<std::uint32_t>(node.children.size()); }
  std::uint32_t to_parent() const { return 2 * children(); }

  template <class From, class To>
  void reduce(Word k, const From& from, const To& to) {
    if (leads()) {
      if (plan->kind == Kind::kReduce) {
        context.recv_reduce_copy(slice, k, from, node.own_operand, blink::complete);
      } else {
        context.recv_reduce_copy_send(slice, k, from, node.own_operand, to, blink::complete);
      }
    } else {
      context.recv_reduce_send(slice, k, from, node.own_operand, ends(to_parent()), blink::partial);
    }
  }

  void upward(Word k) {
    switch (children()) {
      case 0:
        if (!leads()) {
          context.send(slice, k, ends(to_parent()));
        } else if (plan->kind == Kind::kReduce) {
          context.copy(slice, k);
        } else {
          context.copy_send(slice, k, ends());
        }
        break;
      case 1: reduce(k, ends(0), ends(1)); break;
      case 2: reduce(k, ends(0, 1), ends(2, 3)); break;
      case 3: reduce(k, ends(0, 1, 2), ends(3, 4, 5)); break;
      default: reduce(k, ends(0, 1, 2, 3), ends(4, 5, 6, 7)); break;
    }
  }

  template <class To>
  void pass(Word k, const To& to) {
    if (leads()) {
      context.copy_send(slice, k, to);
    } else if (relays()) {
      context.recv_send(slice, k, to_parent() + 1, to);
    } else {
      context.recv_copy_send(slice, k, to_parent() + 1, to);
    }
  }

  void downward(Word k) {
    switch (children()) {
      case 0:
        if (leads()) {
          context.copy(slice, k);
        } else if (relays()) {
          context.recv_send(slice, k, to_parent() + 1, ends());
        } else {
          context.recv(slice, k, to_parent() + 1);
        }
        break;
      case 1: pass(k, ends(1)); break;
      case 2: pass(k, ends(2, 3)); break;
      case 3: pass(k, ends(3, 4, 5)); break;
      default: pass(k, ends(4, 5, 6, 7)); break;
    }
  }
};

template <class Wire>
void open(KernelContext<Wire>& context, std::uint32_t channel, const Node& node, std::uint32_t rank) {
  const auto up = [&](std::size_t i) { return plan->up(channel, node.children[i]); };
  const auto down = [&](std::size_t i) { return plan->down(channel, node.children[i]); };
  const std::uint32_t to = plan->up(channel, rank);
  const std::uint32_t from = plan->down(channel, rank);
  const bool leads = node.parent == kNobody;
  switch (node.children.size()) {
    case 0: return leads ? context.open() : context.open(to, from);
    case 1: return leads ? context.open(up(0), down(0)) : context.open(up(0), down(0), to, from);
    case 2:
      return leads ? context.open(up(0), up(1), down(0), down(1))
                   : context.open(up(0), up(1), down(0), down(1), to, from);
    case 3:
      return leads ? context.open(up(0), up(1), up(2), down(0), down(1), down(2))
                   : context.open(up(0), up(1), up(2), down(0), down(1), down(2), to, from);
    default: return context.open(up(0), up(1), up(2), up(3), down(0), down(1), down(2), down(3));
  }
}

template <class Wire>
void run(KernelContext<Wire>& context, std::uint32_t rank, std::uint32_t number) {
  if (delay_ms[rank] == kNobody) return;
  if (delay_ms[rank] > 0) std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms[rank]));
  const Share& share = plan->channels[number];
  const Node& node = share.nodes[rank];
  open(context, number, node, rank);
  context.contributors(plan->contributors);
  if (plan->largest_num != 0) context.largest(plan->largest_num, plan->largest_den);
  const Slice slice = context.slice(0, 0, share.start_num, share.start_den, share.stop_num, share.stop_den);
  Channel<Wire> channel = {context, node, slice};
  const bool upward = plan->kind != Kind::kBroadcast;
  const bool downward = plan->kind == Kind::kBroadcast || (plan->kind == Kind::kAllReduce && !channel.leads());
  const Word end = blink::latest(slice.chunks + node.up, slice.chunks + node.down);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    if (upward) channel.upward(tick - node.up);
    if (downward) channel.downward(tick - node.down);
  }
  context.close();
}

}  // namespace

BLINK_ENTRY(context_simple, Simple, run)
BLINK_ENTRY(context_ll, LL, run)
BLINK_ENTRY(context_ll128, LL128, run)

namespace {

using Entry = void (*)(const Call*, std::uint32_t);
const Entry kEntries[] = {context_simple, context_ll, context_ll128};

// ---- plans

std::uint32_t depth(const Share& share, std::uint32_t rank) {
  std::uint32_t hops = 0;
  for (; rank != share.root; rank = share.nodes[rank].parent) ++hops;
  return hops;
}

// From each rank's parent. Later roles are one tick later, as in a program.
Share share_of(const std::vector<std::uint32_t>& parents, Kind kind, std::mt19937& random, bool with_relay) {
  Share share = {};
  share.nodes.resize(parents.size());
  std::uint32_t deepest = 0;
  for (std::uint32_t rank = 0; rank < parents.size(); ++rank) {
    share.nodes[rank].parent = parents[rank];
    if (parents[rank] == kNobody) share.root = rank;
    if (parents[rank] != kNobody) share.nodes[parents[rank]].children.push_back(rank);
  }
  for (std::uint32_t rank = 0; rank < parents.size(); ++rank) deepest = std::max(deepest, depth(share, rank));
  for (std::uint32_t rank = 0; rank < parents.size(); ++rank) {
    Node& node = share.nodes[rank];
    std::shuffle(node.children.begin(), node.children.end(), random);
    node.own_operand = static_cast<std::uint32_t>(random() % (node.children.size() + 1));
    if (with_relay && node.parent != kNobody && !node.children.empty() && random() % 2 == 0)
      node.own_operand = kNoOwnOperand;
    node.up = deepest - depth(share, rank);
    node.down = depth(share, rank) + (kind == Kind::kBroadcast ? 0 : deepest);
  }
  return share;
}

std::vector<std::uint32_t> tree_parents(std::uint32_t ranks, std::uint32_t shape, std::mt19937& random) {
  std::vector<std::uint32_t> order(ranks);
  for (std::uint32_t i = 0; i < ranks; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::uint32_t> parents(ranks, kNobody);
  for (std::uint32_t i = 1; i < ranks; ++i) {
    const std::uint32_t above = shape == 0 ? i - 1 : shape == 1 ? 0 : static_cast<std::uint32_t>(random() % i);
    parents[order[i]] = order[above];
  }
  return parents;
}

// A ring is as many chains as ranks, each beginning one rank further.
Plan ring(std::uint32_t ranks, std::mt19937& random) {
  Plan made = {Kind::kAllReduce, ranks, {}, ranks, 0, 1};
  for (std::uint32_t root = 0; root < ranks; ++root) {
    std::vector<std::uint32_t> parents(ranks, kNobody);
    for (std::uint32_t hop = 1; hop < ranks; ++hop) {
      parents[(root + ranks - hop) % ranks] = (root + ranks - hop + 1) % ranks;
    }
    made.channels.push_back(share_of(parents, made.kind, random, false));
    Share& share = made.channels.back();
    share.start_num = root;
    share.stop_num = root + 1;
    share.start_den = share.stop_den = ranks;
  }
  return made;
}

Plan trees(Kind kind, std::uint32_t ranks, std::uint32_t shape, std::mt19937& random, bool with_relay) {
  Plan made = {kind, ranks, {}, 0, 0, 1};
  const Word middle = 1 + random() % 5;
  for (Word channel = 0; channel < 2; ++channel) {
    made.channels.push_back(share_of(tree_parents(ranks, shape, random), kind, random, with_relay && channel == 0));
    Share& share = made.channels.back();
    share.start_num = channel == 0 ? 0 : middle;
    share.start_den = channel == 0 ? 1 : 6;
    share.stop_num = channel == 0 ? middle : 1;
    share.stop_den = channel == 0 ? 6 : 1;
  }
  if (middle != 3) {
    made.largest_num = std::max(middle, 6 - middle);
    made.largest_den = 6;
  }
  made.contributors = ranks;
  return made;
}

Mesh mesh_of(const Plan& of, const Geometry& geometry) {
  Mesh::Pairs pairs;
  for (const Share& share : of.channels) {
    for (std::uint32_t child = 0; child < of.ranks; ++child) {
      // A root's own connections join nobody, and are not opened.
      const std::uint32_t parent = share.nodes[child].parent == kNobody ? child : share.nodes[child].parent;
      pairs.push_back({child, parent});
      pairs.push_back({parent, child});
    }
  }
  return Mesh(of.ranks, pairs, geometry);
}

// ---- launches and their answers

struct Job {
  std::uint32_t dtype, op;
  std::size_t itemsize;
  Word count;
  Word chunk_bytes;
  bool average;
  double scale;  // 0: unscaled
  bool in_place;
  std::size_t skew;
};

struct Buffers {
  std::vector<std::vector<char>> memory;
  std::size_t skew;
  char* of(std::size_t rank) { return memory[rank].data() + skew; }
};

Buffers buffers_of(std::uint32_t ranks, std::size_t bytes, std::size_t skew) {
  return {std::vector<std::vector<char>>(ranks, std::vector<char>(bytes + skew, 0x11)), skew};
}

// Small whole numbers, exact in every type for as many ranks as there are; or whatever look like flags of messages.
void fill(char* to, const Job& job, Word flags_from, std::mt19937& random) {
  const std::uint32_t looks = random() % 2;
  for (Word i = 0; i < job.count; ++i) {
    const std::uint32_t value = random() % 4 + 1;
    char* const at = to + i * job.itemsize;
    const float single = static_cast<float>(value);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &single, 4);
    switch (job.dtype) {
      case 0: *at = static_cast<char>(value); break;
      case 5: {
        const std::uint32_t flag = (looks != 0 ? 0x80000000u : 0u) | static_cast<std::uint32_t>(flags_from + value);
        const std::uint32_t whole = random() % 4 == 0 ? value : flag;
        std::memcpy(at, &whole, 4);
        break;
      }
      case 9: bits >>= 16; std::memcpy(at, &bits, 2); break;
      case 10: std::memcpy(at, &single, 4); break;
      default: {
        const double twice = static_cast<double>(value);
        std::memcpy(at, &twice, 8);
      }
    }
  }
}

const std::pair<std::uint32_t, std::size_t> kTypesAndSizes[] = {{5, 4}, {0, 1}, {9, 2}, {10, 4}, {11, 8}};

// What rank `rank` sends upward in its tree: all elements, though the share is a part of them.
std::vector<char> value_of(const Share& share, std::uint32_t rank, const Job& job, Buffers& inputs, bool completes,
                           std::uint32_t contributors) {
  const Node& node = share.nodes[rank];
  std::vector<std::vector<char>> messages;
  for (const std::uint32_t child : node.children) {
    messages.push_back(value_of(share, child, job, inputs, false, contributors));
  }
  std::vector<const void*> operands;
  for (const auto& message : messages) operands.push_back(message.data());
  std::int32_t own = -1;
  if (node.own_operand != kNoOwnOperand) {
    own = static_cast<std::int32_t>(node.own_operand);
    operands.insert(operands.begin() + own, inputs.of(rank));
  }
  std::vector<char> result(job.count * job.itemsize);
  void* const to[] = {result.data()};
  blink_combine(job.dtype, job.op, to, 1, operands.data(), static_cast<int>(operands.size()), job.count,
                job.scale != 0 ? own : -1, job.scale, completes && job.average ? contributors : 1);
  return result;
}

Word boundary(Word num, Word den, const Job& job) {
  if (num >= den) return job.count;
  const Word group = 16 / job.itemsize;
  return num * job.count / (den * group) * group;
}

struct Run {
  Plan plan;
  Mesh mesh;
  int code = 0;
  std::string name;

  Run(const Plan& of, const Geometry& geometry) : plan(of), mesh(mesh_of(of, geometry)), name() {}

  void check(const Job& job, Buffers& inputs, Buffers& outputs);
  void launch(std::uint32_t wire, const Job& job, std::mt19937& random, Word flags_from);
};

void Run::check(const Job& job, Buffers& inputs, Buffers& outputs) {
  for (const Share& share : plan.channels) {
    std::vector<char> wanted;
    if (plan.kind == Kind::kBroadcast) {
      const char* const from = inputs.of(share.root);
      wanted.assign(from, from + job.count * job.itemsize);
    } else {
      wanted = value_of(share, share.root, job, inputs, true, plan.contributors);
    }
    const Word start = boundary(share.start_num, share.start_den, job) * job.itemsize;
    const Word stop = boundary(share.stop_num, share.stop_den, job) * job.itemsize;
    for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
      const bool keeps =
          plan.kind == Kind::kReduce ? rank == share.root : share.nodes[rank].own_operand != kNoOwnOperand;
      if (plan.kind == Kind::kAllReduce && share.nodes[rank].own_operand == kNoOwnOperand) continue;
      for (Word at = start; at < stop; ++at) {
        const char expected = keeps ? wanted[at] : '\x11';
        if (job.in_place && !keeps) break;
        if (!expect(outputs.of(rank)[at] == expected, "%s: rank %u byte %" PRIu64 " is %d, expected %d", name.c_str(),
                    rank, static_cast<std::uint64_t>(at), outputs.of(rank)[at], expected)) {
          return;
        }
      }
    }
  }
}

void Run::launch(std::uint32_t wire, const Job& job, std::mt19937& random, Word flags_from) {
  const std::size_t bytes = job.count * job.itemsize;
  Buffers inputs = buffers_of(plan.ranks, bytes, job.skew * job.itemsize);
  Buffers outputs = buffers_of(plan.ranks, bytes, job.skew * 2 % 3 * job.itemsize);
  for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) fill(inputs.of(rank), job, flags_from, random);
  Buffers given = inputs;
  std::vector<Call> calls;
  float scale = static_cast<float>(job.scale);
  std::uint32_t scale_bits = 0;
  std::memcpy(&scale_bits, &scale, 4);
  for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
    Call call = mesh.call(rank);
    call.input = given.of(rank);
    call.output = job.in_place ? given.of(rank) : outputs.of(rank);
    call.count = job.count;
    call.chunk_bytes = job.chunk_bytes;
    call.dtype = job.dtype;
    call.op = job.op;
    call.average = job.average;
    if (job.scale != 0) {
      call.scale_kind = blink::kScaleGiven;
      call.scale = scale_bits;
    }
    calls.push_back(call);
  }
  ::plan = &plan;
  const auto blocks = static_cast<std::uint32_t>(plan.channels.size()) * mesh.geometry.parts;
  code = blink_launch(kEntries[wire], calls.data(), plan.ranks, blocks, 100);
  if (!expect(code == 0, "%s: the launch returned %d", name.c_str(), code)) return;
  check(job, inputs, job.in_place ? given : outputs);
}

// ---- tests

void run_many(const Plan& of, const Geometry& geometry, std::mt19937& random, Word position, int launches) {
  Run run(of, geometry);
  if (position != 0) run.mesh.pretend(position);
  delay_ms.assign(of.ranks, 0);
  for (int launch = 0; launch < launches && blink_test::failures < 5; ++launch) {
    const auto& [dtype, size] = kTypesAndSizes[random() % 5];
    const std::uint32_t wire = random() % 3;
    const Word capacities[] = {geometry.slot_bytes, geometry.line_bytes / 2, geometry.line_bytes / 128 * 120};
    const Word capacity = capacities[wire];
    Job job = {dtype, random() % 4 == 0 ? 3u : 0u, size, random() % 900, 0, false, 0, random() % 2 == 0, random() % 3};
    job.chunk_bytes = std::max<Word>(16, (random() % (capacity / 16) + 1) * 16);
    if (of.kind != Kind::kBroadcast && dtype == 10) {
      job.average = random() % 2 == 0;
      job.scale = random() % 2 == 0 ? 2.5 : 0.0;
    }
    if (random() % 5 == 0) delay_ms[random() % of.ranks] = 2;
    const Word now =
        run.mesh.end(of.channels[0].root == 0 ? 1 : 0, of.up(0, of.channels[0].root == 0 ? 1 : 0)).position[0];
    char text[200];
    std::snprintf(text, sizeof text,
                  "kind %d ranks %u channels %zu wire %u parts %u slots %u dtype %u op %u count %u chunk %u launch %d",
                  static_cast<int>(of.kind), of.ranks, of.channels.size(), wire, geometry.parts, geometry.slots, dtype,
                  job.op, static_cast<unsigned>(job.count), static_cast<unsigned>(job.chunk_bytes), launch);
    run.name = text;
    run.launch(wire, job, random, now);
    delay_ms.assign(of.ranks, 0);
  }
}

void test_shapes(std::mt19937& random) {
  const int launches = 4 * blink_test::kEffort;
  for (std::uint32_t slots = 1; slots <= 4; ++slots) {
    for (std::uint32_t parts = 1; parts <= 3; ++parts) {
      const Geometry geometry = {parts, slots, 256, 384};
      for (std::uint32_t shape = 0; shape < 3; ++shape) {
        const bool relays = shape != 1;
        run_many(trees(Kind::kReduce, 4, shape, random, relays), geometry, random, 0, launches / 2);
        run_many(trees(Kind::kBroadcast, 4, shape, random, relays), geometry, random, 0, launches / 2);
        if (slots >= 2) run_many(trees(Kind::kAllReduce, 5, shape, random, relays), geometry, random, 0, launches);
      }
      if (slots >= 2) run_many(ring(3, random), geometry, random, 0, launches);
    }
  }
}

// Flags come round: all the way from far below to far above every boundary.
void test_wrap(std::mt19937& random) {
  for (const Word boundary : {Word{1} << 30, Word{1} << 31, Word{1} << 32, Word{3} << 31, Word{1} << 63}) {
    for (std::uint32_t slots = 2; slots <= 3; ++slots) {
      run_many(trees(Kind::kAllReduce, 3, 0, random, false), {1, slots, 256, 384}, random, boundary - 20, 20);
    }
  }
}

// Lines that were last written one round of flags ago do not pass for new: whatever the wire was meanwhile, the slots
// have been wiped.
void test_stale_flags(std::mt19937& random) {
  constexpr std::uint32_t kSlots = 3;
  for (std::uint32_t wire = 0; wire < 3; ++wire) {
    Run run(trees(Kind::kBroadcast, 3, 0, random, false), {1, kSlots, 256, 384});
    const Word sweeps = Word{1} << 30;
    const Word later = sweeps + 300;
    run.mesh.pretend(sweeps);
    run.mesh.for_lines([&](Word* words, std::size_t slot) {
      const Word message = later + (slot + kSlots - later % kSlots) % kSlots;
      for (std::size_t i = 0; i < 384 / 8; ++i) words[i] = (message << 32) | Word{1} << 63 | 0xbad;
    });
    delay_ms.assign(3, 0);
    Job job = {5, 0, 4, 64, 16, false, 0, false, 0};  // at least as many chunks as slots for each share
    run.name = "sweeps";
    run.launch(wire, job, random, 0);
    run.mesh.pretend(later);
    delay_ms[run.plan.channels[0].root] = delay_ms[run.plan.channels[1].root] = 20;
    run.name = "after a round of flags";
    job.chunk_bytes = 192;
    run.launch(1, job, random, 0);
    delay_ms.assign(3, 0);
  }
}

// 0 → 1 → 2, one channel.
Plan chain() {
  Plan of = {Kind::kBroadcast, 3, {}, 3, 0, 1};
  std::mt19937 random(1);
  of.channels.push_back(share_of({kNobody, 0, 1}, of.kind, random, false));
  of.channels[0].start_num = 0;
  of.channels[0].start_den = of.channels[0].stop_num = of.channels[0].stop_den = 1;
  return of;
}

// Broadcasts `data` along the chain. What blink_launch returned.
int launch_chain(Run& run, std::uint32_t wire, const std::vector<std::uint32_t>& data, Word chunk_bytes,
                 std::vector<std::vector<std::uint32_t>>& outputs, Word timeout_ns) {
  std::vector<Call> calls;
  outputs.assign(3, std::vector<std::uint32_t>(data.size(), 0));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    Call call = run.mesh.call(rank);
    call.input = reinterpret_cast<const char*>(data.data());
    call.output = reinterpret_cast<char*>(outputs[rank].data());
    call.count = data.size();
    call.chunk_bytes = chunk_bytes;
    call.timeout_ns = timeout_ns;
    calls.push_back(call);
  }
  ::plan = &run.plan;
  return blink_launch(kEntries[wire], calls.data(), 3, 1, 50);
}

// LL128 has data where LL has flags. Here they are the flags that LL waits for next, and LL's sender is late.
void test_left_behind() {
  constexpr Word kPosition = 50;
  constexpr Word kChunk = 352;
  Run run(chain(), {1, 2, 256, 384});
  run.mesh.pretend(kPosition);
  delay_ms.assign(3, 0);
  std::vector<std::uint32_t> data;
  for (std::uint32_t i = 0; i < 2 * kChunk / 4; ++i) data.push_back(0x80000000u | (kPosition + 2 + i / (kChunk / 4)));
  std::vector<std::vector<std::uint32_t>> outputs;
  expect(launch_chain(run, 2, data, kChunk, outputs, 0) == 0, "LL128 ends");
  expect(outputs[2] == data, "LL128 carries what looks like flags");
  data.assign(2 * kChunk / 8, 7);
  delay_ms[0] = 20;
  expect(launch_chain(run, 1, data, kChunk / 2, outputs, 0) == 0, "LL after LL128 ends");
  for (const auto& output : outputs) expect(output == data, "LL does not take LL128's data for flags");
  delay_ms.assign(3, 0);
}

// Only the last rank comes, and finds some of its message.
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
  delay_ms = {kNobody, kNobody, 0};
  for (const Row& row : rows) {
    Run run(chain(), {1, 2, 256, 384});
    run.mesh.pretend(kPosition);
    auto* const line = reinterpret_cast<Word*>(run.mesh.end(2, run.plan.down(0, 2)).lines);
    line[0] = row.first;
    line[1] = row.second;
    line[15] = row.last;
    std::vector<std::vector<std::uint32_t>> outputs;
    const int code = launch_chain(run, row.wire, {0, 0}, 128, outputs, 20000000);
    const bool right = row.whole ? code == 0 && outputs[2] == std::vector<std::uint32_t>{1, 2} : code == 1;
    expect(right, "wire %u, row %d: %d", row.wire, static_cast<int>(&row - rows), code);
  }
  delay_ms.assign(3, 0);
}

// Of the chain `missing` does not come: what do the others say, and what have they passed?
void test_missing(std::uint32_t wire, std::uint32_t missing, bool by_abort) {
  const Plan of = chain();
  constexpr Word kSlots = 2;
  constexpr Word kPassed = 77;
  Run run(of, {1, kSlots, 256, 512});
  run.mesh.pretend(kPassed);
  std::vector<char> data(4096);
  std::vector<std::vector<char>> outputs(3, std::vector<char>(4096));
  std::vector<Call> calls;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    Call call = run.mesh.call(rank);
    call.input = data.data();
    call.output = outputs[rank].data();
    call.count = 1024;
    call.chunk_bytes = 128;
    call.timeout_ns = by_abort ? 0 : 50000000;
    calls.push_back(call);
  }
  delay_ms.assign(3, 0);
  delay_ms[missing] = kNobody;
  ::plan = &run.plan;
  const auto begin = std::chrono::steady_clock::now();
  const int code = blink_launch(kEntries[wire], calls.data(), 3, 1, by_abort ? 0.05 : 50);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  delay_ms.assign(3, 0);
  expect(code == 1 && took.count() < 20, "wire %u without rank %u: %d after %g s", wire, missing, code, took.count());
  expect((run.mesh.aborts[0] != 0) == by_abort, "abort words are %u", run.mesh.aborts[0]);
  const std::uint32_t reason = by_abort ? blink::kAborted : blink::kTimedOut;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const blink::Status& status = run.mesh.statuses[rank];
    if (rank == missing) {
      expect(status.code == 0, "who does not come says nothing");
      continue;
    }
    // Without rank 0 nobody has anything; without 1 rank 0 fills its slots; without 2 rank 1 does, and rank 0 too,
    // which waits for the slots that rank 1 could not leave.
    const bool sending = rank < missing;
    const std::uint32_t connection = sending ? of.down(0, rank + 1) : of.down(0, rank);
    const bool behind = missing == 1 && rank == 2;
    const Word passed = kPassed + (sending ? kSlots * (missing - rank) : 0);
    expect(status.code == reason && status.sending == (sending ? 1u : 0u) && status.channel == 0,
           "wire %u without %u: rank %u says code %u sending %u channel %u", wire, missing, rank, status.code,
           status.sending, status.channel);
    expect(status.connection == connection && status.position == passed,
           "wire %u without %u: rank %u says connection %u position %" PRIu64 ", expected %u and %" PRIu64 "%s", wire,
           missing, rank, status.connection, static_cast<std::uint64_t>(status.position), connection,
           static_cast<std::uint64_t>(passed), behind ? " behind" : "");
    const Word stored = *run.mesh.end(rank, connection).position;
    expect(stored == passed, "wire %u without %u: rank %u stored position %" PRIu64, wire, missing, rank,
           static_cast<std::uint64_t>(stored));
  }
}

// Several blocks give up at once: one of them is heard, whole.
void test_one_status(std::mt19937& random) {
  Plan of = trees(Kind::kBroadcast, 3, 1, random, false);
  Run run(of, {3, 2, 256, 512});
  std::vector<char> data(65536);
  std::vector<Call> calls;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    Call call = run.mesh.call(rank);
    call.input = call.output = data.data();
    call.count = 0;
    call.chunk_bytes = 128;
    call.timeout_ns = 20000000;
    calls.push_back(call);
  }
  const std::uint32_t root = of.channels[0].root;
  calls[root].count = 16384;
  ::plan = &run.plan;
  delay_ms.assign(3, kNobody);
  delay_ms[root] = 0;
  expect(blink_launch(context_simple, calls.data(), 3, 6, 50) == 1, "the root gave up");
  delay_ms.assign(3, 0);
  const blink::Status& status = run.mesh.statuses[root];
  const bool known = status.connection < 12 && run.mesh.end(root, status.connection).ring != nullptr;
  expect(status.code == blink::kTimedOut && known && status.channel < 2, "the status is whole: code %u connection %u",
         status.code, status.connection);
}

// A share's pieces tile the block, and agree with the boundaries of the planner for counts that do not fit twice.
void test_slices() {
  for (const std::uint32_t parts : {1u, 3u, 8u}) {
    for (const Word count : {Word{0}, Word{1}, Word{5}, Word{1000003}, (Word{1} << 45) + 7}) {
      const Geometry geometry = {parts, 2, 256, 384};
      Mesh mesh(2, {{0, 1}}, geometry);
      Call call = mesh.call(0);
      call.count = count;
      call.chunk_bytes = 256;
      const Word den = (Word{1} << 28) - 1;
      const Word cuts[] = {0, 1, den / 3, den - 1, den};
      Word next = 5 * count;
      for (int cut = 0; cut < 4; ++cut) {
        for (std::uint32_t part = 0; part < parts; ++part) {
          const KernelContext<blink::Simple> context(call, 0, part);
          const Slice slice = context.slice(5, 7, cuts[cut], den, cuts[cut + 1], den);
          const bool whole = slice.length == 0 || next == slice.source;
          expect(whole && slice.target == slice.source + 2 * count && slice.chunks == (slice.length + 63) / 64,
                 "count %" PRIu64 " cut %d part %u of %u", static_cast<std::uint64_t>(count), cut, part, parts);
          next += slice.length;
        }
        const auto product = static_cast<unsigned __int128>(cuts[cut + 1]) * count;
        const auto exact = static_cast<Word>(product / (den * Word{4}) * 4);
        expect(next == 5 * count + (cut == 3 ? count : exact), "count %" PRIu64 " ends cut %d at %" PRIu64,
               static_cast<std::uint64_t>(count), cut, static_cast<std::uint64_t>(next - 5 * count));
      }
    }
  }
}

// With `largest` of den known, a share is cut into as many chunks as that one, in whole groups that fit into a message.
void check_even(const Call& call, std::uint32_t part, Word largest, Word share, Word den) {
  constexpr Word kGroup = 4, kChunk = 64;  // elements
  KernelContext<blink::Simple> context(call, 0, part);
  const Slice plain = context.slice(0, 0, 0, 1, share, den);
  context.largest(largest, den);
  const Slice slice = context.slice(0, 0, 0, 1, share, den);
  const auto product = static_cast<unsigned __int128>(largest) * call.count;
  const auto groups = static_cast<Word>((product + den * kGroup - 1) / (den * kGroup));
  const Word rounds = ((groups + call.parts - 1) / call.parts * kGroup + kChunk - 1) / kChunk;
  const bool same = slice.source == plain.source && slice.length == plain.length;
  const bool fits = slice.chunk > 0 && slice.chunk <= kChunk && slice.chunk % kGroup == 0;
  const bool covers = slice.chunks == (slice.length + slice.chunk - 1) / slice.chunk;
  // As many, but where chunks of whole groups are too coarse for that.
  const bool even = slice.chunks <= rounds && (slice.chunk - kGroup) * rounds < std::max<Word>(slice.length, 1);
  expect(same && fits && covers && (even || rounds <= 1),
         "count %" PRIu64 " share %" PRIu64 " of %" PRIu64 ", largest %" PRIu64 ", part %u of %u: %" PRIu64
         " chunks of %" PRIu64 ", rounds %" PRIu64,
         static_cast<std::uint64_t>(call.count), static_cast<std::uint64_t>(share), static_cast<std::uint64_t>(den),
         static_cast<std::uint64_t>(largest), part, call.parts, static_cast<std::uint64_t>(slice.chunks),
         static_cast<std::uint64_t>(slice.chunk), static_cast<std::uint64_t>(rounds));
  if (rounds <= 1) expect(slice.chunk == plain.chunk && slice.chunks == plain.chunks, "one chunk stays one");
}

void test_even_chunks() {
  for (const std::uint32_t parts : {1u, 3u, 8u}) {
    for (const Word count : {Word{0}, Word{1}, Word{63}, Word{4097}, Word{1000003}, (Word{1} << 45) + 7}) {
      const Geometry geometry = {parts, 2, 256, 384};
      Mesh mesh(2, {{0, 1}}, geometry);
      Call call = mesh.call(0);
      call.count = count;
      call.chunk_bytes = 256;
      const Word fine = (Word{1} << 28) - 1;
      for (std::uint32_t part = 0; part < parts; ++part) {
        for (const Word den : {Word{24}, fine}) {
          const Word largest = den / 4;
          for (const Word share : {Word{1}, den / 24, den / 12, den / 6, largest}) {
            check_even(call, part, largest, share, den);
          }
        }
      }
    }
  }
}

}  // namespace

int main() {
  std::mt19937 random(11);
  test_slices();
  test_even_chunks();
  test_shapes(random);
  test_wrap(random);
  test_stale_flags(random);
  test_left_behind();
  test_half_messages();
  for (std::uint32_t wire = 0; wire < 3; ++wire) {
    for (std::uint32_t missing = 0; missing < 3; ++missing) {
      test_missing(wire, missing, false);
      test_missing(wire, missing, true);
    }
  }
  test_one_status(random);
  return blink_test::verdict();
}
