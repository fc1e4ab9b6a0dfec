// The number of a group's trees that may use an arc (μ in blinkccl/trees/packing/integral.py), from stored flows: one
// to each vertex, of the units that all groups without that vertex bring there. Arcs in use and growing groups
// invalidate a few units of a flow. The next query for that vertex removes these and reroutes them, instead of starting
// from zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "units.h"

namespace blink::packing {

template <class Units>
class KeptFlows {
 public:
  using Vertex = std::int32_t;
  using Arc = std::int32_t;

  KeptFlows(Vertex vertices, const std::vector<Vertex>& tail, const std::vector<Vertex>& head,
            const std::vector<Units>& capacity)
      : n_(vertices), kept_(static_cast<std::size_t>(vertices)) {
    for (Vertex v = 0; v <= n_; ++v) add_vertex();
    for (std::size_t arc = 0; arc < tail.size(); ++arc) add(tail[arc], head[arc], capacity[arc]);
  }

  // Adds a group without vertices, and returns its number.
  std::int32_t open(Units multiplicity) {
    const auto group = static_cast<std::int32_t>(supply_.size());
    supply_.push_back(add(n_, add_vertex(), 0));
    multiplicity_.push_back(multiplicity);
    has_.emplace_back(static_cast<std::size_t>(n_), 0);
    open_.push_back(group);
    return group;
  }
  void join(std::int32_t group, Vertex v) {
    has_[group][v] = 1;
    add(node(group), v, infinite<Units>);
  }
  void close(std::int32_t group) {
    open_.erase(std::find(open_.begin(), open_.end(), group));
    capacity_[supply_[group]] = 0;
    has_[group] = {};
  }
  void set_multiplicity(std::int32_t group, Units units) { multiplicity_[group] = units; }
  void give(Arc arc, Units units) { capacity_[arc] -= units; }

  // Returns μ, at most `wanted`; if that is the whole group the arc must be given to it.
  Units allowed(std::int32_t group, Arc arc, Units wanted) {
    const Vertex u = head_[2 * arc + 1], v = head_[2 * arc];
    const Arc own = supply_[group];
    Units missing = restore(group, v);
    if (flow_[own] > 0) {
      capacity_[own] = 0;
      cancel(own, flow_[own], v);
      missing -= push(n_, v, missing);
    }
    const Units more = push(u, v, wanted + missing);
    if (more == multiplicity_[group] && missing == 0) {
      const Units direct = std::min(flow_[arc], more);
      flow_[arc] -= direct;
      drop_onward(u, more - direct, v);
      keep(v);
    }
    clear();
    return std::max(Units{0}, more - missing);
  }

 private:
  struct Used {
    Arc arc;
    Units units;
  };

  Vertex node(std::int32_t group) const { return head_[2 * supply_[group]]; }

  Vertex add_vertex() {
    leaving_.emplace_back();
    reached_from_.push_back(nowhere);
    by_.push_back(-1);
    return static_cast<Vertex>(leaving_.size()) - 1;
  }

  Arc add(Vertex tail, Vertex head, Units units) {
    const auto arc = static_cast<Arc>(flow_.size());
    leaving_[tail].push_back(2 * arc);
    leaving_[head].push_back(2 * arc + 1);
    head_.push_back(head);
    head_.push_back(tail);
    capacity_.push_back(units);
    flow_.push_back(0);
    touched_.push_back(0);
    return arc;
  }

  Units room(std::int32_t edge) const {
    const Units used = flow_[edge >> 1];
    return edge & 1 ? used : capacity_[edge >> 1] - used;
  }

  // Repairs the stored flow to v, while `group` brings no more than before. Returns the units that groups cannot bring.
  Units restore(std::int32_t group, Vertex v) {
    for (const Used& used : kept_[v]) {
      touch(used.arc);
      flow_[used.arc] = used.units;
    }
    for (const std::int32_t each : open_) capacity_[supply_[each]] = has_[each][v] ? 0 : multiplicity_[each];
    capacity_[supply_[group]] = std::min(capacity_[supply_[group]], flow_[supply_[group]]);
    bool spoilt = false;
    for (const Used& used : kept_[v]) {
      const Units over = flow_[used.arc] - capacity_[used.arc];
      if (over <= 0) continue;
      cancel(used.arc, over, v);
      spoilt = true;
    }
    Units missing = 0;
    for (const std::int32_t each : open_) missing += capacity_[supply_[each]] - flow_[supply_[each]];
    if (missing > 0) {
      missing -= push(n_, v, missing);
      spoilt = true;
    }
    if (spoilt) keep(v);
    return missing;
  }

  void touch(Arc arc) {
    if (touched_[arc]) return;
    touched_[arc] = 1;
    used_.push_back(arc);
  }

  void keep(Vertex v) {
    kept_[v].clear();
    for (const Arc arc : used_) {
      if (flow_[arc] > 0) kept_[v].push_back({arc, flow_[arc]});
    }
  }

  void clear() {
    for (const Arc arc : used_) flow_[arc] = touched_[arc] = 0;
    used_.clear();
  }

  // Removes units from an arc, and from the paths that bring them there and on to v.
  void cancel(Arc arc, Units units, Vertex v) {
    flow_[arc] -= units;
    drop_onward(head_[2 * arc], units, v);
    drop(head_[2 * arc + 1], units, n_, 1);
  }
  void drop_onward(Vertex u, Units units, Vertex v) { drop(u, units, v, 0); }

  // Removes units along arcs with flow, from u to `end`; `backward` is 1 for the reverse direction.
  void drop(Vertex u, Units units, Vertex end, std::int32_t backward) {
    dropping_.assign(1, {u, units});
    while (!dropping_.empty()) {
      auto [x, left] = dropping_.back();
      dropping_.pop_back();
      if (x == end) continue;
      for (auto e = leaving_[x].begin(); left > 0 && e != leaving_[x].end(); ++e) {
        Units& flow = flow_[*e >> 1];
        if ((*e & 1) != backward || flow == 0) continue;
        const Units part = std::min(left, flow);
        flow -= part;
        left -= part;
        dropping_.emplace_back(head_[*e], part);
      }
    }
  }

  // Adds flow until it is maximal or `limit`, by shortest paths (Edmonds and Karp 1972), as few units are missing.
  Units push(Vertex source, Vertex sink, Units limit) {
    Units total = 0;
    while (total < limit && find_path(source, sink)) {
      Units units = limit - total;
      for (const std::int32_t e : path_) units = std::min(units, room(e));
      for (const std::int32_t e : path_) {
        touch(e >> 1);
        flow_[e >> 1] += e & 1 ? -units : units;
      }
      total += units;
    }
    return total;
  }

  // Finds a shortest path with room, level by level from both ends: an arc that may not be used is mostly full near one
  // of its ends, so the search stops there early.
  bool find_path(Vertex source, Vertex sink) {
    for (const Vertex v : seen_) reached_from_[v] = nowhere;
    seen_.clear();
    Level ahead{source_end}, back{sink_end};
    reach(ahead, source, -1);
    reach(back, sink, -1);
    for (;;) {
      Level& nearer = ahead.edges <= back.edges ? ahead : back;
      if (nearer.vertices.empty()) return false;
      const std::int32_t meeting = next_level(nearer);
      if (meeting < 0) continue;
      path_.assign(1, meeting);
      for (Vertex x = head_[meeting ^ 1]; x != source; x = head_[path_.back() ^ 1]) path_.push_back(by_[x]);
      for (Vertex x = head_[meeting]; x != sink; x = head_[path_.back()]) path_.push_back(by_[x]);
      return true;
    }
  }

  enum End : std::uint8_t { nowhere, source_end, sink_end };
  // The vertices at one distance from one end, and the number of edges to visit.
  struct Level {
    End end;
    std::vector<Vertex> vertices = {};
    std::size_t edges = 0;
  };

  void reach(Level& level, Vertex v, std::int32_t by) {
    reached_from_[v] = level.end;
    by_[v] = by;
    seen_.push_back(v);
    level.vertices.push_back(v);
    level.edges += leaving_[v].size();
  }

  // Returns the edge to a vertex that the other end has reached, or -1.
  std::int32_t next_level(Level& level) {
    Level next{level.end};
    const std::int32_t turned = level.end == sink_end;
    for (const Vertex x : level.vertices) {
      for (const std::int32_t e : leaving_[x]) {
        const Vertex w = head_[e];
        if (reached_from_[w] == level.end || room(e ^ turned) == 0) continue;
        if (reached_from_[w] != nowhere) return e ^ turned;
        // A group without flow has nothing to reroute.
        if (w > n_ && capacity_[supply_[w - n_ - 1]] == 0) continue;
        reach(next, w, e ^ turned);
      }
    }
    level = std::move(next);
    return -1;
  }

  Vertex n_;  // also the source of all groups' units; the groups' vertices follow it
  std::vector<std::vector<std::int32_t>> leaving_;  // edge 2i is arc i, edge 2i + 1 its reverse
  std::vector<Vertex> head_;
  std::vector<Units> capacity_, flow_;
  std::vector<Arc> supply_;  // by group
  std::vector<Units> multiplicity_;
  std::vector<std::vector<std::uint8_t>> has_;
  std::vector<std::int32_t> open_;
  std::vector<std::vector<Used>> kept_;
  // State of the current query.
  std::vector<std::uint8_t> touched_;
  std::vector<Arc> used_;
  std::vector<End> reached_from_;
  std::vector<std::int32_t> by_, path_;  // the edge to a vertex from the source's end, or from it to the sink's end
  std::vector<Vertex> seen_;
  std::vector<std::pair<Vertex, Units>> dropping_;
};

}  // namespace blink::packing
