// Hand-made tables for the host engine: plans of a few collectives, and the rows of blink/host.h for each of their
// ranks.
//
// Independent of host_plan.py and simpler: every message has its own queue, and a plan is a graph of nodes that run
// once per chunk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "blink/host.h"
#include "../src/op.h"

namespace blink_test {

enum class Kind { kOneHop, kOneShot, kTwoRoots, kRing, kBroadcast, kChain, kAllGather, kReduceScatter };
constexpr Kind kKinds[] = {Kind::kOneHop,    Kind::kOneShot, Kind::kTwoRoots,  Kind::kRing,
                           Kind::kBroadcast, Kind::kChain,   Kind::kAllGather, Kind::kReduceScatter};
constexpr unsigned kKindCount = sizeof kKinds / sizeof kKinds[0];

inline bool reduces(Kind kind) {
  return kind != Kind::kBroadcast && kind != Kind::kChain && kind != Kind::kAllGather;
}
inline std::int64_t input_blocks(Kind kind, int ranks) { return kind == Kind::kReduceScatter ? ranks : 1; }
inline std::int64_t output_blocks(Kind kind, int ranks) { return kind == Kind::kAllGather ? ranks : 1; }

// The place of a part of the data, in elements from the start of the rank's input and output.
struct Slice {
  std::int64_t source = 0, target = 0, length = 0;
};

struct Node {
  int rank, slice;
  int offset;
  bool contributes, keeps;
  std::vector<int> from;  // nodes, in the order of reduction
  int own_operand_index = 0;
};

struct Plan {
  int ranks = 0;
  std::int64_t input = 0, output = 0;  // elements
  std::vector<Slice> slices;
  std::vector<Node> nodes;

  int add(Node node) {
    nodes.push_back(std::move(node));
    return static_cast<int>(nodes.size()) - 1;
  }

  std::vector<int> readers(int sender) const {
    std::vector<int> found;
    for (int n = 0; n < static_cast<int>(nodes.size()); ++n) {
      const auto& from = nodes[n].from;
      if (std::find(from.begin(), from.end(), sender) != from.end()) found.push_back(n);
    }
    return found;
  }

  // Whether `then` can run only after `first`.
  bool precedes(int first, int then) const {
    if (first == then) return true;
    const std::vector<int> next = readers(first);
    return std::any_of(next.begin(), next.end(), [&](int n) { return precedes(n, then); });
  }

  // A rank's nodes in execution order: in one tick receivers before their senders.
  std::vector<int> body(int rank) const {
    std::vector<int> found;
    for (int n = 0; n < static_cast<int>(nodes.size()); ++n) {
      if (nodes[n].rank == rank) found.push_back(n);
    }
    std::stable_sort(found.begin(), found.end(), [&](int a, int b) { return nodes[a].offset > nodes[b].offset; });
    return found;
  }
};

namespace detail {

// Adds a chain that ends at `root`, or a star; returns the root's node.
inline int up(Plan& plan, int root, int slice, bool chain, bool keeps) {
  std::vector<int> leaves;
  int last = -1;
  for (int step = 1; step < plan.ranks; ++step) {
    const int rank = chain ? (root + step) % plan.ranks : step - 1 + (step - 1 >= root);
    std::vector<int> from;
    if (chain && last >= 0) from = {last};
    last = plan.add({rank, slice, chain ? step - 1 : 0, true, false, from, 0});
    leaves.push_back(last);
  }
  if (chain) leaves = {last};
  return plan.add({root, slice, chain ? plan.ranks - 1 : 1, true, keeps, leaves, chain ? 1 : root});
}

inline void down(Plan& plan, int root, bool chain) {
  int last = root;
  for (int step = 1; step < plan.ranks; ++step) {
    const Node above = plan.nodes[static_cast<std::size_t>(last)];
    const int rank = (plan.nodes[static_cast<std::size_t>(root)].rank + step) % plan.ranks;
    const int made = plan.add({rank, above.slice, above.offset + 1, false, true, {last}, 0});
    if (chain) last = made;
  }
}

}  // namespace detail

// A plan with `count` elements per block; broadcasts start at rank 0.
inline Plan make_plan(Kind kind, int ranks, std::int64_t count) {
  Plan plan;
  plan.ranks = ranks;
  plan.input = count * input_blocks(kind, ranks);
  plan.output = count * output_blocks(kind, ranks);
  if (kind == Kind::kBroadcast || kind == Kind::kChain) {
    plan.slices = {{0, 0, count}};
    detail::down(plan, plan.add({0, 0, 0, true, true, {}, 0}), kind == Kind::kChain);
    return plan;
  }
  if (kind == Kind::kOneShot) {
    plan.slices = {{0, 0, count}};
    for (int r = 0; r < ranks; ++r) plan.add({r, 0, 0, true, false, {}, 0});
    for (int r = 0; r < ranks; ++r) {
      Node root{r, 0, 1, true, true, {}, r};
      for (int other = 0; other < ranks; ++other) {
        if (other != r) root.from.push_back(other);
      }
      plan.add(root);
    }
    return plan;
  }
  if (kind == Kind::kTwoRoots) {
    // Every input is sent to each of two roots in its own message; the other ranks get the sum from one of them,
    // perhaps before they have sent their input to the other.
    plan.slices = {{0, 0, count}};
    const int roots[] = {detail::up(plan, 0, 0, false, true), detail::up(plan, 1, 0, false, true)};
    for (int r = 2; r < ranks; ++r) plan.add({r, 0, 2, false, true, {roots[r % 2]}, 0});
    return plan;
  }
  for (int r = 0; r < ranks; ++r) {
    if (kind == Kind::kAllGather) {
      plan.slices.push_back({0, r * count, count});
      detail::down(plan, plan.add({r, r, 0, true, true, {}, 0}), false);
    } else if (kind == Kind::kReduceScatter) {
      plan.slices.push_back({r * count, 0, count});
      detail::up(plan, r, r, false, true);
    } else {
      const std::int64_t start = r * count / ranks, stop = (r + 1) * count / ranks;
      plan.slices.push_back({start, start, stop - start});
      const bool chain = kind == Kind::kRing;
      detail::down(plan, detail::up(plan, r, r, chain, true), chain);
    }
  }
  return plan;
}

// The parameters of a plan besides its size.
struct Binding {
  std::uint32_t dtype = 0;  // of std::uint32_t
  std::int64_t item = 1;
  std::int64_t chunk = 1;   // elements
  std::int64_t slots = 1;
  bool small = false;       // messages with their flags inside;
  bool replies = false;     // replies overwrite the messages that they answer;
  bool splits = false;      // a leaf that is a sender's only reader reads half, and the sender writes half;
  bool crosses = false;     // messages may be read in private buffers, and halves of them written there
  std::uint64_t signature = 1;
};

// One rank's tables, and the memory that `tables` points to.
struct Rows {
  std::vector<blink_role> roles;
  std::vector<blink_receive> receives;
  std::vector<std::int64_t> sends;
  std::vector<blink_ring> rings;
  std::vector<blink_reader> readers;
  blink_tables numbers{};

  blink_tables tables() const {
    blink_tables t = numbers;
    t.roles = roles.data();
    t.role_count = static_cast<std::int64_t>(roles.size());
    t.receives = receives.data();
    t.receive_count = static_cast<std::int64_t>(receives.size());
    t.sends = sends.data();
    t.send_count = static_cast<std::int64_t>(sends.size());
    t.rings = rings.data();
    t.ring_count = static_cast<std::int64_t>(rings.size());
    t.readers = readers.data();
    t.reader_count = static_cast<std::int64_t>(readers.size());
    return t;
  }
};

// Lays a plan out in a segment.
class Layout {
 public:
  Layout(const Plan& plan, const Binding& binding) : plan_(plan), binding_(binding) {
    for (int n = 0; n < static_cast<int>(plan.nodes.size()); ++n) {
      const std::vector<int> readers = plan.readers(n);
      const std::int64_t slots = binding.small ? 1 : binding.slots + (readers.size() > 1);
      places_.push_back({readers, 0, 0, stride(plan.nodes[static_cast<std::size_t>(n)].slice), slots, -1});
    }
    if (binding.replies && !binding.small) place_replies();
    std::vector<std::int64_t> lines(static_cast<std::size_t>(plan.ranks), 0), bytes(lines);
    for (int n = 0; n < static_cast<int>(plan.nodes.size()); ++n) {
      const auto rank = static_cast<std::size_t>(node(n).rank);
      Place& at = places_[static_cast<std::size_t>(n)];
      if (at.readers.empty()) continue;
      at.line = lines[rank];
      lines[rank] += 1 + static_cast<std::int64_t>(at.readers.size());
      at.staging = bytes[rank];
      if (at.answers < 0) bytes[rank] += at.stride * at.slots;
    }
    for (Place& at : places_) {
      if (at.answers < 0) continue;
      at.staging = place(at.answers).staging;
      at.slots = place(at.answers).slots;
    }
    lines_needed = *std::max_element(lines.begin(), lines.end());
    bytes_needed = *std::max_element(bytes.begin(), bytes.end());
  }

  std::int64_t lines_needed = 0, bytes_needed = 0;  // of the rank with the most

  Rows rows(int rank) const {
    Rows made;
    for (const int n : plan_.body(rank)) add(made, n);
    blink_tables& t = made.numbers;
    t.signature = binding_.signature;
    t.what = binding_.signature * 7;
    t.count = plan_.input;
    t.dtype = binding_.dtype;
    t.op = static_cast<std::uint32_t>(BLINK_SUM);
    t.shifts = 1;
    t.inline_messages = binding_.small;
    t.direct_read_in_place = direct_read_in_place(rank);
    t.direct_write_in_place = direct_write_in_place(rank);
    t.cross_memory = binding_.crosses;
    t.input_bytes = plan_.input * binding_.item;
    t.output_bytes = plan_.output * binding_.item;
    t.queue_count = static_cast<std::int64_t>(made.receives.size());
    return made;
  }

 private:
  struct Place {
    std::vector<int> readers;
    std::int64_t line, staging, stride, slots;
    int answers;  // the node whose messages these overwrite; -1: none
  };

  const Node& node(int n) const { return plan_.nodes[static_cast<std::size_t>(n)]; }
  const Place& place(int n) const { return places_[static_cast<std::size_t>(n)]; }
  const Slice& slice(int n) const { return plan_.slices[static_cast<std::size_t>(node(n).slice)]; }

  std::int64_t stride(int slice) const {
    const std::int64_t length = plan_.slices[static_cast<std::size_t>(slice)].length;
    const std::int64_t bytes = (binding_.small ? length : std::min(length, binding_.chunk)) * binding_.item;
    const auto payload = static_cast<std::int64_t>(blink::kPayloadBytes);
    return binding_.small ? (bytes + payload - 1) / payload * static_cast<std::int64_t>(sizeof(blink::Block))
                          : (bytes + 63) / 64 * 64;
  }

  // Places replies for nodes whose only reader is on the rank of one of its senders, which sends to no other node.
  void place_replies() {
    std::vector<bool> answered(places_.size(), false);
    for (int n = 0; n < static_cast<int>(places_.size()); ++n) {
      if (place(n).readers.size() != 1 || answered[static_cast<std::size_t>(n)]) continue;
      const int taker = place(n).readers[0];
      for (const int giver : node(n).from) {
        Place& question = places_[static_cast<std::size_t>(giver)];
        if (question.readers.size() != 1 || question.answers >= 0 || answered[static_cast<std::size_t>(giver)] ||
            node(giver).rank != node(taker).rank) {
          continue;
        }
        answered[static_cast<std::size_t>(giver)] = true;
        places_[static_cast<std::size_t>(n)].answers = giver;
        question.slots = std::max<std::int64_t>(question.slots, node(taker).offset - node(giver).offset + 1);
        break;
      }
    }
  }

  std::int64_t reply_to(int n) const { return place(n).answers < 0 ? 0 : node(place(n).answers).rank + 1; }

  std::int64_t direct(int n) const {
    if (binding_.small) return BLINK_READ_NONE;
    if (node(n).contributes && node(n).from.empty()) return BLINK_READ_INPUT;
    return node(n).keeps ? BLINK_READ_OUTPUT : BLINK_READ_NONE;
  }

  bool is_leaf(int reader) const {
    const Node& leaf = node(reader);
    return leaf.keeps && !leaf.contributes && leaf.from.size() == 1 && place(reader).readers.empty();
  }

  // Whether the sender writes directly: a reduced value for a rank that only keeps it, or half of an input.
  bool direct_write(int sender, int reader) const {
    return is_leaf(reader) &&
           ((!binding_.small && node(sender).contributes && !node(sender).from.empty()) || split(sender));
  }

  bool split(int n) const {
    return binding_.splits && direct(n) == BLINK_READ_INPUT && place(n).readers.size() == 1 &&
           is_leaf(place(n).readers[0]);
  }

  template <class Test>
  bool for_all_nodes(Test test) const {
    for (int n = 0; n < static_cast<int>(plan_.nodes.size()); ++n) {
      if (!test(n)) return false;
    }
    return true;
  }

  // Whether no rank keeps a slice at `rank` before all readers of it as input have finished.
  bool direct_read_in_place(int rank) const {
    return for_all_nodes([&](int sender) {
      if (node(sender).rank != rank || direct(sender) != BLINK_READ_INPUT) return true;
      return for_all_nodes([&](int keeper) {
        if (node(keeper).rank != rank || !node(keeper).keeps || keeper == sender ||
            node(keeper).slice != node(sender).slice) {
          return true;
        }
        const auto& readers = place(sender).readers;
        return std::all_of(readers.begin(), readers.end(), [&](int r) { return plan_.precedes(r, keeper); });
      });
    });
  }

  // Whether no rank writes a slice into the output of `rank` before all readers of it as input have finished.
  bool direct_write_in_place(int rank) const {
    return for_all_nodes([&](int writer) {
      const auto& leaves = place(writer).readers;
      return std::all_of(leaves.begin(), leaves.end(), [&](int leaf) {
        if (node(leaf).rank != rank || !direct_write(writer, leaf)) return true;
        return for_all_nodes([&](int n) {
          if (node(n).rank != rank || !node(n).contributes || node(n).slice != node(writer).slice) return true;
          const auto& readers = place(n).readers;
          return plan_.precedes(n, writer) &&
                 (direct(n) != BLINK_READ_INPUT ||
                  std::all_of(readers.begin(), readers.end(), [&](int r) { return plan_.precedes(r, writer); }));
        });
      });
    });
  }

  // Whether only acknowledgements show that all readers have finished.
  bool drains(int n) const {
    const auto& readers = place(n).readers;
    return std::any_of(readers.begin(), readers.end(), [&](int reader) {
      return for_all_nodes([&](int own) { return node(own).rank != node(n).rank || !plan_.precedes(reader, own); });
    });
  }

  void add(Rows& made, int n) const {
    const Node& at = node(n);
    blink_role role{};
    role.offset = at.offset;
    role.length = slice(n).length;
    role.chunk_elements = binding_.chunk;
    role.chunks = (role.length + binding_.chunk - 1) / binding_.chunk;
    role.source = at.contributes ? slice(n).source * binding_.item : blink::kNowhere;
    role.target = at.keeps ? slice(n).target * binding_.item : blink::kNowhere;
    role.divisor = 1;
    role.own_operand_index = at.own_operand_index;
    role.first_receive = size(made.receives);
    role.receives = size(at.from);
    role.first_send = size(made.sends);
    role.sends = !place(n).readers.empty();
    role.share = at.slice;
    made.roles.push_back(role);
    for (const int sender : at.from) made.receives.push_back(receive(n, sender, size(made.receives)));
    if (role.sends == 0) return;
    made.sends.push_back(size(made.rings));
    blink_ring ring{};
    ring.line = place(n).line;
    ring.staging = place(n).staging;
    ring.stride = place(n).stride;
    ring.slots = place(n).slots;
    ring.first_reader = size(made.readers);
    ring.readers = size(place(n).readers);
    ring.direct_read = direct(n);
    ring.reply_to = reply_to(n);
    ring.split = split(n);
    ring.drain = ring.direct_read != BLINK_READ_NONE && drains(n);
    made.rings.push_back(ring);
    std::int64_t ack_line = ring.line;
    for (const int reader : place(n).readers) {
      made.readers.push_back({node(reader).rank, ++ack_line,
                              direct_write(n, reader) ? slice(reader).target * binding_.item : blink::kNowhere, 0});
    }
  }

  blink_receive receive(int reader, int sender, std::int64_t queue) const {
    const Place& from = place(sender);
    blink_receive made{};
    made.rank = node(sender).rank;
    made.line = from.line;
    const auto which = std::find(from.readers.begin(), from.readers.end(), reader) - from.readers.begin();
    made.ack_line = from.line + 1 + which;
    made.staging = from.staging;
    made.stride = from.stride;
    made.slots = from.slots;
    made.reply_to = reply_to(sender);
    made.split = split(sender);
    made.direct_read = direct(sender);
    made.direct_offset =
        (made.direct_read == BLINK_READ_INPUT ? slice(sender).source : slice(sender).target) * binding_.item;
    made.direct_write = direct_write(sender, reader);
    made.queue = queue;
    return made;
  }

  template <class Row>
  static std::int64_t size(const std::vector<Row>& rows) {
    return static_cast<std::int64_t>(rows.size());
  }

  const Plan& plan_;
  Binding binding_;
  std::vector<Place> places_;
};

}  // namespace blink_test
