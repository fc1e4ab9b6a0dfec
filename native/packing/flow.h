// Maximum flow with integer capacities (Dinic 1970). Edge 2i is arc i, 2i+1 its reverse.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "units.h"

namespace blink::packing {

template <class Units>
class FlowGraph {
 public:
  // Adds the arcs, without capacities if those are null, and reserves room for more arcs and vertices.
  explicit FlowGraph(const blink_arcs& arcs, std::int32_t more_vertices = 0, std::int64_t more_arcs = 0)
      : vertices_(static_cast<std::int32_t>(arcs.vertices) + more_vertices) {
    head_.reserve(2 * static_cast<std::size_t>(arcs.arcs + more_arcs));
    capacity.reserve(head_.capacity());
    for (std::int64_t i = 0; i < arcs.arcs; ++i) {
      add(arcs.tail[i], arcs.head[i], arcs.capacity == nullptr ? 0 : read<Units>(arcs.capacity[i]));
    }
  }

  // Adds an edge and returns its number.
  std::int32_t add(std::int32_t tail, std::int32_t head, Units units) {
    const auto number = static_cast<std::int32_t>(head_.size());
    head_.push_back(head);
    head_.push_back(tail);
    capacity.push_back(units);
    capacity.push_back(0);
    return number;
  }
  // To be called after the last arc.
  void finish() {
    first_.assign(static_cast<std::size_t>(vertices_) + 1, 0);
    const auto edges = static_cast<std::int32_t>(head_.size());
    for (std::int32_t e = 0; e < edges; ++e) ++first_[tail(e) + 1];
    for (std::int32_t v = 0; v < vertices_; ++v) first_[v + 1] += first_[v];
    at_ = first_;
    edge_.resize(head_.size());
    for (std::int32_t e = 0; e < edges; ++e) edge_[at_[tail(e)]++] = e;
    level_.resize(vertices_);
  }

  Units max_flow(std::int32_t source, std::int32_t sink, Units limit) {
    Units total = 0;
    while (total < limit && levels(source, sink)) {
      at_ = first_;
      while (total < limit) {
        const Units pushed = augment(source, sink, limit - total);
        if (pushed == 0) break;
        total += pushed;
      }
    }
    return total;
  }

  // Marks the vertices that `source` still reaches.
  void source_side(std::int32_t source, std::uint8_t* side, std::int32_t count) {
    levels(source, -1);
    for (std::int32_t v = 0; v < count; ++v) side[v] = level_[v] >= 0;
  }

  std::vector<Units> capacity;

 private:
  std::int32_t tail(std::int32_t edge) const { return head_[edge ^ 1]; }

  bool levels(std::int32_t source, std::int32_t sink) {
    std::fill(level_.begin(), level_.end(), -1);
    queue_.clear();
    queue_.push_back(source);
    level_[source] = 0;
    for (std::size_t next = 0; next < queue_.size(); ++next) {
      const std::int32_t u = queue_[next];
      for (std::int32_t i = first_[u]; i < first_[u + 1]; ++i) {
        const std::int32_t w = head_[edge_[i]];
        if (level_[w] >= 0 || capacity[edge_[i]] == 0) continue;
        level_[w] = level_[u] + 1;
        if (w == sink) return true;
        queue_.push_back(w);
      }
    }
    return false;
  }

  // Augments one path along the levels; returns its flow, 0 if none is left.
  Units augment(std::int32_t source, std::int32_t sink, Units limit) {
    path_.clear();
    std::int32_t u = source;
    while (u != sink) {
      const std::int32_t end = first_[u + 1];
      while (at_[u] < end) {
        const std::int32_t e = edge_[at_[u]];
        if (capacity[e] != 0 && level_[head_[e]] == level_[u] + 1) break;
        ++at_[u];
      }
      if (at_[u] < end) {
        path_.push_back(edge_[at_[u]]);
        u = head_[path_.back()];
      } else if (path_.empty()) {
        return 0;
      } else {
        u = tail(path_.back());
        path_.pop_back();
        ++at_[u];
      }
    }
    for (const std::int32_t e : path_) limit = std::min(limit, capacity[e]);
    for (const std::int32_t e : path_) {
      capacity[e] -= limit;
      capacity[e ^ 1] += limit;
    }
    return limit;
  }

  std::int32_t vertices_;
  std::vector<std::int32_t> head_, first_, at_, edge_, level_, queue_, path_;
};

}  // namespace blink::packing
