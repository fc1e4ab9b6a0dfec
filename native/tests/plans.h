// Plans for any size, made from the plans of tables.h: every node is a role with its own ring.
//
// Independent of host_plan.py and simpler: without direct writes, replies in place and split transfers.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "../src/plan.h"
#include "tables.h"

namespace blink_test {

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

// An AllReduce, Broadcast or AllGather of `kind` in rings of `slots` slots.
inline Words plan_words(Kind kind, int ranks, bool small, std::int64_t slots) {
  const Plan graph = make_plan(kind, ranks, ranks);  // with blocks of one element per rank, in which shares are counted
  blink_plan plan;
  blink_plan_header& h = plan.header;
  const auto size = [](const auto& rows) { return static_cast<std::int64_t>(rows.size()); };
  for (const Slice& slice : graph.slices) {
    const std::int64_t start = slice.target % ranks;
    plan.slices.push_back({0, start, ranks, start + slice.length, ranks});
  }
  std::vector<std::int64_t> ring_of(graph.nodes.size(), -1);
  for (int rank = 0; rank < ranks; ++rank) {
    std::int64_t line = 0;
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      const std::vector<int> readers = graph.readers(static_cast<int>(n));
      const Node& node = graph.nodes[n];
      if (node.rank != rank || readers.empty()) continue;
      const bool direct = !small && node.contributes && node.from.empty();
      const std::int64_t block = direct ? graph.slices[static_cast<std::size_t>(node.slice)].source / ranks : BLINK_NOWHERE;
      ring_of[n] = size(plan.rings);
      plan.rings.push_back({rank, line++, slots + (readers.size() > 1), size(plan.sources), 1, size(plan.readers),
                            size(readers), direct ? BLINK_READ_INPUT : BLINK_READ_NONE, block, direct, 0, -1});
      plan.sources.push_back(node.slice);
      for (const int reader : readers) {
        plan.readers.push_back({graph.nodes[static_cast<std::size_t>(reader)].rank, line++, BLINK_NOWHERE, 0});
      }
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t first_role = size(plan.roles), first_receive = size(plan.receives);
    for (const int n : graph.body(rank)) {
      const Node& node = graph.nodes[static_cast<std::size_t>(n)];
      const Slice& slice = graph.slices[static_cast<std::size_t>(node.slice)];
      const std::int64_t ring = ring_of[static_cast<std::size_t>(n)];
      plan.roles.push_back({node.slice, node.offset, node.contributes ? slice.source / ranks : BLINK_NOWHERE,
                            node.keeps ? slice.target / ranks : BLINK_NOWHERE, 1, node.own_operand_index,
                            size(plan.receives), size(node.from), size(plan.sends), ring >= 0, 0, node.slice, 0});
      for (const int sender : node.from) {
        const blink_plan_ring& from = plan.rings[static_cast<std::size_t>(ring_of[static_cast<std::size_t>(sender)])];
        const std::vector<int> readers = graph.readers(sender);
        const auto which = std::find(readers.begin(), readers.end(), n) - readers.begin();
        plan.receives.push_back({ring_of[static_cast<std::size_t>(sender)], from.first_reader + which,
                                 size(plan.receives) - first_receive});
      }
      if (ring >= 0) plan.sends.push_back(ring);
    }
    std::int64_t first_ring = 0, rings = 0;
    for (const blink_plan_ring& ring : plan.rings) first_ring += ring.rank < rank, rings += ring.rank == rank;
    plan.ranks.push_back({input_blocks(kind, ranks), output_blocks(kind, ranks), first_role,
                          size(plan.roles) - first_role, first_ring, rings, size(plan.receives) - first_receive, 0, 0});
  }
  h = {BLINK_PLAN_MAGIC, BLINK_PLAN_VERSION, 0, 0, 17, BLINK_ALLREDUCE, 0, 0, small, ranks, size(plan.slices),
       size(plan.roles), size(plan.receives), size(plan.sends), size(plan.rings), size(plan.sources), size(plan.readers)};
  Words words;
  append(words, std::vector<blink_plan_header>{h});
  append(words, plan.ranks);
  append(words, plan.slices);
  append(words, plan.roles);
  append(words, plan.receives);
  append(words, plan.sends);
  append(words, plan.rings);
  append(words, plan.sources);
  append(words, plan.readers);
  words[offsetof(blink_plan_header, words) / sizeof(std::int64_t)] = size(words);
  sum_up(words);
  return words;
}

struct Free {
  void operator()(blink_plan* plan) const { blink_plan_free(plan); }
  void operator()(blink_bound* bound) const { blink_bound_free(bound); }
  void operator()(blink_op* op) const { blink_op_destroy(op); }
};
using PlanHeld = std::unique_ptr<blink_plan, Free>;

inline PlanHeld read(const Words& words, blink_error& error) {
  error = blink_error{};
  return PlanHeld(blink_plan_read(words.data(), words.size() * sizeof(std::int64_t), &error));
}

}  // namespace blink_test
