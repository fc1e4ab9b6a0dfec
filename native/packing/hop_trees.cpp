// Cheap trees with a limited number of hops; blinkccl/trees/algorithms/refine.py explains their use.
//
// Finding the cheapest is NP-hard (with two levels it is a facility location). So two trees are built, Prim's as far as
// the levels allow and the one with the fewest hops, and improved while a move reduces the price. A move gives a vertex
// another parent; if it would then be too deep, the parent moves too. Further trees start with shaken prices, the same
// in every run, and are then improved with the true ones.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "blink/packing.h"

namespace {

using Vertex = std::int32_t;

constexpr double none = std::numeric_limits<double>::infinity();
// The smallest gain of a move, relative to the tree's price; less is rounding.
constexpr double least_gain = 1e-11;
// The largest relative change of shaken prices.
constexpr double shake = 0.5;

// Prices of hops, and the possible parents of each vertex, the cheapest first.
struct Hops {
  Hops(Vertex vertices, std::vector<double> prices) : n(vertices), price(std::move(prices)), parents(vertices) {
    for (Vertex v = 0; v < n; ++v) {
      for (Vertex u = 0; u < n; ++u) {
        if (u != v && of(u, v) < none) parents[v].push_back(u);
      }
      std::stable_sort(parents[v].begin(), parents[v].end(), [&](Vertex a, Vertex b) { return of(a, v) < of(b, v); });
    }
  }
  double of(Vertex u, Vertex v) const { return price[static_cast<std::size_t>(u) * n + v]; }

  Vertex n;
  std::vector<double> price;
  std::vector<std::vector<Vertex>> parents;
};

// A tree of at most `levels` hops.
class Tree {
 public:
  Tree(Vertex n, Vertex root, Vertex levels) : n_(n), root_(root), levels_(levels), depth_(n), height_(n), parent_(n) {}

  // Builds Prim's tree within the depth limit; false if some vertices remain outside.
  bool grow_cheap(const Hops& hops) {
    std::vector<double> best(n_, none);
    std::vector<bool> joined(n_);
    parent_.assign(n_, -1);
    for (Vertex u = root_, count = 1;; ++count) {
      joined[u] = true;
      depth_[u] = u == root_ ? 0 : depth_[parent_[u]] + 1;
      for (Vertex v = 0; v < n_ && depth_[u] < levels_; ++v) {
        const bool nearer = hops.of(u, v) == best[v] && best[v] < none && depth_[u] < depth_[parent_[v]];
        if (!joined[v] && (hops.of(u, v) < best[v] || nearer)) best[v] = hops.of(u, v), parent_[v] = u;
      }
      if (count == n_) break;
      u = -1;
      for (Vertex v = 0; v < n_; ++v) {
        if (!joined[v] && best[v] < none && (u < 0 || best[v] < best[u])) u = v;
      }
      if (u < 0) return false;
    }
    measure();
    return true;
  }

  // Builds a tree with the fewest hops, each from the cheapest parent of the level above; false if it is too deep.
  bool grow_shallow(const Hops& hops) {
    std::vector<Vertex> level{root_}, next;
    std::vector<bool> joined(n_);
    joined[root_] = true;
    parent_.assign(n_, -1);
    Vertex count = 1;
    for (Vertex depth = 0; !level.empty() && depth < levels_; ++depth) {
      next.clear();
      for (Vertex v = 0; v < n_; ++v) {
        for (const Vertex u : level) {
          if (!joined[v] && hops.of(u, v) < (parent_[v] < 0 ? none : hops.of(parent_[v], v))) parent_[v] = u;
        }
      }
      for (Vertex v = 0; v < n_; ++v) {
        if (!joined[v] && parent_[v] >= 0) joined[v] = true, next.push_back(v), ++count;
      }
      level.swap(next);
    }
    measure();
    return count == n_;
  }

  // Moves vertices while that reduces the price, or the depth at the same price.
  void improve(const Hops& hops) {
    double total = 0;
    for (Vertex v = 0; v < n_; ++v) total += v == root_ ? 0 : hops.of(parent_[v], v);
    const double least = least_gain * total;
    for (bool moved = true; moved;) {
      moved = false;
      for (Vertex v = 0; v < n_; ++v) moved |= v != root_ && hang(hops, v, least);
    }
  }

  void write(std::int32_t* out) const { std::copy(parent_.begin(), parent_.end(), out); }

 private:
  // Makes the first move of v to a cheaper parent within the depth limit, if necessary moving that parent too.
  bool hang(const Hops& hops, Vertex v, double least) {
    const double now = hops.of(parent_[v], v);
    for (const Vertex u : hops.parents[v]) {
      const double saved = now - hops.of(u, v);
      if (saved < 0) break;
      if (saved <= least && !(saved == 0 && depth_[u] < depth_[parent_[v]])) continue;
      if (depth_[u] + 1 + height_[v] <= levels_ && !below(u, v)) {
        parent_[v] = u;
        measure();
        return true;
      }
      if (saved > least && lift(hops, u, v, saved - least)) return true;
    }
    return false;
  }

  // Moves u closer to the root, and v below it, if that costs less than `most`.
  bool lift(const Hops& hops, Vertex u, Vertex v, double most) {
    if (u == root_) return false;
    const double now = hops.of(parent_[u], u);
    for (const Vertex w : hops.parents[u]) {
      if (hops.of(w, u) - now >= most) break;
      const Vertex depth = depth_[w] + 1;
      if (w == parent_[u] || depth + height_[u] > levels_ || depth + 1 + height_[v] > levels_) continue;
      if (below(w, u) || below(w, v)) continue;
      parent_[u] = w;
      parent_[v] = u;
      measure();
      return true;
    }
    return false;
  }

  // Whether u is v or below it.
  bool below(Vertex u, Vertex v) const {
    while (u >= 0 && u != v) u = parent_[u];
    return u == v;
  }

  // Computes depths and heights, with one pass per level.
  void measure() {
    std::fill(height_.begin(), height_.end(), 0);
    for (Vertex v = 0; v < n_; ++v) {
      Vertex above = 0;
      for (Vertex x = v; parent_[x] >= 0; x = parent_[x]) height_[parent_[x]] = std::max(height_[parent_[x]], ++above);
      depth_[v] = above;
    }
  }

  Vertex n_, root_, levels_;
  std::vector<Vertex> depth_, height_, parent_;
};

// Multiplies prices by 1 to 1 + shake, with a linear congruential generator (Knuth's MMIX) seeded with `state`.
std::vector<double> shaken(std::vector<double> result, std::uint64_t state) {
  for (double& x : result) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x *= 1 + shake * static_cast<double>(state >> 33) / 2147483648.0;
  }
  return result;
}

}  // namespace

extern "C" int blink_hop_trees(std::int64_t vertices, const double* price, std::int64_t levels,
                               const std::int32_t* roots, std::int64_t count, std::int32_t* parent) try {
  const auto n = static_cast<Vertex>(vertices), deepest = static_cast<Vertex>(levels);
  std::vector<Hops> hops;  // with the true prices, then with shaken ones
  hops.emplace_back(n, std::vector<double>(price, price + vertices * vertices));
  for (std::uint64_t state = 2; state < BLINK_PACKING_HOP_TREES; state += 2) {
    hops.emplace_back(n, shaken(hops[0].price, state));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    for (int kind = 0; kind < BLINK_PACKING_HOP_TREES; ++kind, parent += n) {
      Tree tree(n, roots[i], deepest);
      const Hops& first = hops[kind / 2];
      if ((kind % 2 == 1 || !tree.grow_cheap(first)) && !tree.grow_shallow(first)) return BLINK_PACKING_DOES_NOT_FIT;
      tree.improve(first);
      tree.improve(hops[0]);
      tree.write(parent);
    }
  }
  return BLINK_PACKING_DONE;
} catch (const std::bad_alloc&) {
  return BLINK_PACKING_NO_MEMORY;
}
