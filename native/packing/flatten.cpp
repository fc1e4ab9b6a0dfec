// Shallower packed trees by local search over the parents of vertices.
//
// Two moves keep every capacity: a vertex gets another parent over an arc with room left, or two trees of equal
// multiplicity exchange their parents at a vertex. A move is made if it lowers Σ n^depth over all trees and vertices,
// so that the deepest levels empty first. The search ends because that sum only decreases.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "units.h"

namespace {

using Vertex = std::int32_t;

// A tree whose vertices can be moved. The caller owns the parents.
class Tree {
 public:
  Tree(Vertex vertices, Vertex* parents)
      : parent(parents), depth(vertices, -1), child_(vertices, -1), next_(vertices, -1) {
    for (Vertex v = 0; v < vertices; ++v) {
      if (parent[v] < 0) {
        root_ = v;
      } else {
        next_[v] = std::exchange(child_[parent[v]], v);
      }
    }
    settle(root_, 0);
  }

  // v and its descendants, parents first.
  const std::vector<Vertex>& below(Vertex v) {
    below_.assign(1, v);
    for (std::size_t i = 0; i < below_.size(); ++i) {
      for (Vertex w = child_[below_[i]]; w >= 0; w = next_[w]) below_.push_back(w);
    }
    return below_;
  }
  bool is_below(Vertex u, Vertex v) const {
    while (u != v && parent[u] >= 0) u = parent[u];
    return u == v;
  }
  // The number of levels that v would sink below u.
  std::int32_t shift(Vertex v, Vertex u) const { return depth[u] + 1 - depth[v]; }

  void hang(Vertex v, Vertex u) {
    Vertex* from = &child_[parent[v]];
    while (*from != v) from = &next_[*from];
    *from = next_[v];
    next_[v] = std::exchange(child_[u], v);
    parent[v] = u;
    settle(v, depth[u] + 1);
  }

  Vertex* parent;
  std::vector<std::int32_t> depth;

 private:
  void settle(Vertex v, std::int32_t deep) {
    for (const Vertex x : below(v)) depth[x] = x == v ? deep : depth[parent[x]] + 1;
  }

  Vertex root_ = 0;
  std::vector<Vertex> child_, next_, below_;
};

template <class Units>
class Pass {
 public:
  Pass(const blink_arcs& arcs, std::int64_t trees, const blink_units* multiplicity, bool both_ways, Vertex* parents)
      : n_(static_cast<Vertex>(arcs.vertices)),
        multiplicity_(blink::packing::read<Units>(multiplicity, trees)),
        room_(blink::packing::read<Units>(arcs.capacity, arcs.arcs)),
        entering_(static_cast<std::size_t>(arcs.vertices)) {
    for (std::int32_t arc = 0; arc < static_cast<std::int32_t>(arcs.arcs); ++arc) {
      entering_[arcs.head[arc]].emplace_back(arcs.tail[arc], arc);
      if (both_ways) entering_[arcs.tail[arc]].emplace_back(arcs.head[arc], arc);
    }
    for (auto& arcs_here : entering_) std::sort(arcs_here.begin(), arcs_here.end());
    trees_.reserve(static_cast<std::size_t>(trees));
    for (std::int64_t t = 0; t < trees; ++t) {
      trees_.emplace_back(n_, parents + t * n_);
      for (Vertex v = 0; v < n_; ++v) {
        if (trees_.back().parent[v] >= 0) room(trees_.back().parent[v], v) -= multiplicity_[t];
      }
    }
  }

  bool run() {
    bool moved = false;
    for (Vertex v = 0; v < n_; ++v) {
      for (std::size_t t = 0; t < trees_.size(); ++t) moved = raise(t, v) || moved;
      for (std::size_t t = 0; t < trees_.size(); ++t) moved = exchange_with_later(t, v) || moved;
    }
    return moved;
  }

 private:
  Units& room(Vertex u, Vertex v) {
    return room_[std::lower_bound(entering_[v].begin(), entering_[v].end(), std::make_pair(u, -1))->second];
  }

  // Moves v to another parent; of several the highest gains most.
  bool raise(std::size_t t, Vertex v) {
    Tree& tree = trees_[t];
    if (tree.parent[v] < 0) return false;
    Vertex best = -1;
    for (const auto& [u, arc] : entering_[v]) {
      const bool nearer = tree.shift(v, u) < (best < 0 ? 0 : tree.shift(v, best));
      if (nearer && room_[arc] >= multiplicity_[t]) best = u;
    }
    if (best < 0) return false;
    room(tree.parent[v], v) += multiplicity_[t];
    room(best, v) -= multiplicity_[t];
    tree.hang(v, best);
    return true;
  }

  bool exchange_with_later(std::size_t t, Vertex v) {
    Tree& one = trees_[t];
    bool moved = false;
    for (std::size_t other = t + 1; other < trees_.size() && one.parent[v] >= 0; ++other) {
      Tree& two = trees_[other];
      const Vertex u = one.parent[v], w = two.parent[v];
      if (w < 0 || u == w || multiplicity_[t] != multiplicity_[other]) continue;
      const std::int32_t mine = one.shift(v, w), theirs = two.shift(v, u);
      if (std::min(mine, theirs) >= 0 || one.is_below(w, v) || two.is_below(u, v)) continue;
      if (std::max(mine, theirs) > 0 && !gains(one.below(v), one.depth, mine, two.below(v), two.depth, theirs)) continue;
      one.hang(v, w);
      two.hang(v, u);
      moved = true;
    }
    return moved;
  }

  // Whether Σ n^depth decreases if these vertices sink, or rise, by that number of levels. Digits of the difference are
  // below 2n, so two of the highest outweigh all lower ones.
  bool gains(const std::vector<Vertex>& mine, const std::vector<std::int32_t>& my_depth, std::int32_t by,
             const std::vector<Vertex>& theirs, const std::vector<std::int32_t>& their_depth, std::int32_t by_theirs) {
    digits_.assign(2 * static_cast<std::size_t>(n_) + 1, 0);
    for (const Vertex x : mine) {
      ++digits_[my_depth[x]];
      --digits_[my_depth[x] + by];
    }
    for (const Vertex x : theirs) {
      ++digits_[their_depth[x]];
      --digits_[their_depth[x] + by_theirs];
    }
    std::int64_t fall = 0;
    for (auto digit = digits_.rbegin(); digit != digits_.rend() && fall > -2 && fall < 2; ++digit) {
      fall = fall * n_ + *digit;
    }
    return fall > 0;
  }

  Vertex n_;
  std::vector<Units> multiplicity_, room_;
  std::vector<std::vector<std::pair<Vertex, std::int32_t>>> entering_;  // tail and arc, by tail
  std::vector<Tree> trees_;
  std::vector<std::int64_t> digits_;
};

}  // namespace

extern "C" int blink_flatten(const blink_arcs* arcs, int64_t trees, const blink_units* multiplicity, int both_ways,
                             int32_t* parents) {
  return blink::packing::in_units(blink::packing::Sums().add(arcs->capacity, arcs->arcs), [&](auto zero) {
    Pass<decltype(zero)> pass(*arcs, trees, multiplicity, both_ways != 0, parents);
    return pass.run() ? BLINK_PACKING_GOES_ON : BLINK_PACKING_DONE;
  });
}
