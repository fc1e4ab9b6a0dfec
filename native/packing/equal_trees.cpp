// Trees of equal weight by rerouting; blinkccl/trees/packing/equal_trees.py defines the problem.
//
// A tree grows as in Prim's algorithm: by the cheapest hop from a terminal in the tree to one outside, where a hop may
// cross transit vertices. All terminals of a tree are sources of one search, with distance 0 once they have joined, and
// a transit vertex is reached from the nearest. So a tree costs one visit of each arc instead of one search per
// terminal. An arc's price grows exponentially with its load, as in packing by multiplicative weights (Garg and
// Könemann 1998), but trees are whole and rerouted one after the other.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <queue>
#include <utility>
#include <vector>

#include "blink/packing.h"

namespace {

using Vertex = std::int32_t;
using Arc = std::int32_t;
using Seconds = std::chrono::duration<double>;

// Steepness of prices, by pass; the last value is used from then on.
constexpr double steepness[] = {8, 12, 20, 30, 40};
constexpr std::size_t passes_of_all = std::size(steepness);
// The price of a level, relative to an arc with full load: of equal paths the shallower is selected.
constexpr double level_price = 0.3;
// The least price.
constexpr double cheapest = 0.1;
// The price of a full arc when no arc may get more load.
constexpr double shut = 1e6;
// Passes over all trees that remove hops and make the trees shallower.
constexpr int rounds_of_rerouting = 3, most_rounds = 20;
// Factor by which a path's price may rise while its tree grows.
constexpr double dearer = 1.25;

// e^x within a few parts of 10,000. It uses only products and sums, which every machine rounds equally, so that all
// hosts of a job find the same trees; std::exp differs by processor.
double power(double x) {
  const double exponent = x * 1.4426950408889634, whole = std::floor(exponent), part = exponent - whole;
  return std::ldexp(1.0 + part * (0.695556 + part * (0.227411 + part * 0.077033)), static_cast<int>(whole));
}

struct Tree {
  Vertex root = 0;
  std::vector<Arc> arcs;            // of all hops, in order;
  std::vector<std::int32_t> first;  // the start of each hop, and the end
};

// A tree as a parent per vertex.
struct Hung {
  std::vector<Vertex> parent, order;  // parents come before children
  std::vector<std::int32_t> depth, height;
  std::vector<std::vector<Arc>> way;  // the hop into each vertex

  Hung(const Tree& tree, const blink_trees& of);
  void settle(Vertex u, Vertex v) {
    parent[v] = u;
    for (const Vertex x : order) depth[x] = parent[x] < 0 ? 0 : depth[parent[x]] + 1;
    std::stable_sort(order.begin(), order.end(), [&](Vertex a, Vertex b) { return depth[a] < depth[b]; });
    measure();
  }
  void measure() {
    std::fill(height.begin(), height.end(), 0);
    for (auto x = order.rbegin(); x != order.rend(); ++x) {
      if (parent[*x] >= 0) height[parent[*x]] = std::max(height[parent[*x]], height[*x] + 1);
    }
  }
  void write(Tree& tree) const {
    tree.arcs.clear();
    tree.first.assign(1, 0);
    for (std::size_t i = 1; i < order.size(); ++i) {
      tree.arcs.insert(tree.arcs.end(), way[order[i]].begin(), way[order[i]].end());
      tree.first.push_back(static_cast<std::int32_t>(tree.arcs.size()));
    }
  }
};

}  // namespace

struct blink_trees {
  blink_trees(const blink_arcs& arcs, std::int64_t terminals, const std::int32_t* roots, std::int64_t trees,
              std::int64_t depth, const std::int32_t* edges, const double* most, double goal)
      : terminals_(static_cast<Vertex>(terminals)),
        deepest_(static_cast<std::int32_t>(depth)),
        goal_(goal),
        tail_(arcs.tail, arcs.tail + arcs.arcs),
        head_(arcs.head, arcs.head + arcs.arcs),
        edge_(edges, edges + arcs.arcs),
        most_(most, most + arcs.arcs),
        load_(static_cast<std::size_t>(arcs.arcs)),
        price_(static_cast<std::size_t>(arcs.arcs)),
        leaving_(static_cast<std::size_t>(arcs.vertices)),
        entering_(static_cast<std::size_t>(arcs.vertices)),
        label_(static_cast<std::size_t>(arcs.vertices)),
        trees_(static_cast<std::size_t>(trees)) {
    for (Arc arc = 0; arc < static_cast<Arc>(tail_.size()); ++arc) {
      leaving_[tail_[arc]].push_back(arc);
      entering_[head_[arc]].push_back(arc);
    }
    for (std::size_t t = 0; t < trees_.size(); ++t) trees_[t].root = roots[t];
    least_most_ = *std::min_element(most_.begin(), most_.end());
    begin_pass();
  }

  int run(double seconds) {
    const auto begin = std::chrono::steady_clock::now();
    for (;;) {
      if (polishing_) {
        if (!polish_one()) {
          best_ = trees_;
          return BLINK_PACKING_DONE;
        }
      } else if (next_ == trees_.size()) {
        if (keep_best() || pass_ == most_passes()) {
          begin_polish();
          continue;
        }
        ++pass_;
        begin_pass();
        continue;
      } else {
        Tree& tree = trees_[next_++];
        if (pass_ == 0) part_ = static_cast<double>(next_) / static_cast<double>(trees_.size());
        if (pass_ >= passes_of_all && !overloads(tree)) continue;
        remove(tree);
        if (!route(tree)) return BLINK_PACKING_DOES_NOT_FIT;
      }
      if (Seconds(std::chrono::steady_clock::now() - begin).count() > seconds) return BLINK_PACKING_GOES_ON;
    }
  }

  const std::vector<Tree>& best() const { return best_; }
  Vertex head(Arc arc) const { return head_[arc]; }
  Vertex tail(Arc arc) const { return tail_[arc]; }

 private:
  struct Label {
    double cost = std::numeric_limits<double>::infinity();
    Arc by = -1;
  };
  using Entry = std::pair<double, Vertex>;

  static std::size_t most_passes() { return passes_of_all + 40; }

  void begin_pass() {
    next_ = 0;
    steep_ = steepness[std::min(pass_, passes_of_all - 1)];
    part_ = pass_ == 0 ? 0.0 : 1.0;
    for (Arc arc = 0; arc < static_cast<Arc>(edge_.size()); ++arc) set_price(arc);
  }

  // The price is 1 for an arc with its currently full load, which in the first pass is only part of the final one. It
  // is never 0, so that no tree uses more hops than necessary.
  void set_price(Arc arc) {
    if (polishing_) {
      price_[edge_[arc]] = (room(arc) ? 1.0 : shut) * least_most_ / most_[edge_[arc]];
      return;
    }
    const double over = load_[edge_[arc]] / most_[edge_[arc]] - part_;
    price_[edge_[arc]] = (power(std::min(60.0, steep_ * over)) + cheapest) * least_most_ / most_[edge_[arc]];
  }

  void remove(const Tree& tree) {
    for (const Arc arc : tree.arcs) {
      load_[edge_[arc]] -= 1.0;
      set_price(arc);
    }
  }

  bool overloads(const Tree& tree) const {
    return std::any_of(tree.arcs.begin(), tree.arcs.end(),
                       [&](Arc arc) { return load_[edge_[arc]] > goal_ * most_[edge_[arc]]; });
  }

  // Stores the best trees so far; true if they are good enough.
  bool keep_best() {
    double fullest = 0.0;
    for (std::size_t edge = 0; edge < load_.size(); ++edge) fullest = std::max(fullest, load_[edge] / most_[edge]);
    if (best_.empty() || fullest < best_fullest_) {
      best_ = trees_;
      best_fullest_ = fullest;
    }
    return fullest <= goal_;
  }

  // Rebuilds the tree, and its load. Every hop raises the price of its arcs. If this changes the price of the next path
  // substantially, the search restarts from all terminals that have joined.
  bool route(Tree& tree) {
    tree.arcs.clear();
    tree.first.assign(1, 0);
    joined_.assign(1, tree.root);
    depth_.assign(static_cast<std::size_t>(terminals_), -1);
    depth_[tree.root] = 0;
    begin_search();
    while (static_cast<Vertex>(joined_.size()) < terminals_) {
      if (waiting_.empty()) return false;
      const auto [cost, v] = waiting_.top();
      waiting_.pop();
      if (cost > label_[v].cost || (v < terminals_ && depth_[v] >= 0)) continue;
      if (v >= terminals_) {
        spread(v, cost);
      } else if (cost_now(v) > dearer * cost) {
        begin_search();
      } else {
        join(tree, v);
      }
    }
    return true;
  }

  void begin_search() {
    std::fill(label_.begin(), label_.end(), Label{});
    waiting_ = {};
    for (const Vertex v : joined_) spread_from(v);
  }

  void spread_from(Vertex v) {
    spread(v, level(v));
  }

  void spread(Vertex v, double cost) {
    for (const Arc arc : leaving_[v]) {
      const Vertex head = head_[arc];
      const double offer = cost + price_[edge_[arc]];
      if ((head < terminals_ && depth_[head] >= 0) || offer >= label_[head].cost) continue;
      label_[head] = {offer, arc};
      waiting_.emplace(offer, head);
    }
  }

  double level(Vertex v) const { return level_price * (depth_[v] + 1); }

  double cost_now(Vertex v) const {
    double cost = 0.0;
    for (Arc arc = label_[v].by;; arc = label_[tail_[arc]].by) {
      cost += price_[edge_[arc]];
      if (tail_[arc] < terminals_) return cost + level(tail_[arc]);
    }
  }

  void join(Tree& tree, Vertex v) {
    const auto begin = static_cast<std::ptrdiff_t>(tree.arcs.size());
    Arc arc = label_[v].by;
    for (; tail_[arc] >= terminals_; arc = label_[tail_[arc]].by) tree.arcs.push_back(arc);
    tree.arcs.push_back(arc);
    std::reverse(tree.arcs.begin() + begin, tree.arcs.end());
    tree.first.push_back(static_cast<std::int32_t>(tree.arcs.size()));
    depth_[v] = depth_[tail_[arc]] + 1;
    joined_.push_back(v);
    for (auto used = tree.arcs.begin() + begin; used != tree.arcs.end(); ++used) {
      load_[edge_[*used]] += 1.0;
      set_price(*used);
    }
    spread_from(v);
  }

  bool room(Arc arc) const { return load_[edge_[arc]] + 1.0 <= best_fullest_ * most_[edge_[arc]] * (1 + 1e-12); }

  // Starts polishing: the load stays, but with the fewest hops, and vertices that are too deep move closer to the
  // roots.
  void begin_polish() {
    polishing_ = true;
    trees_ = best_;
    std::fill(load_.begin(), load_.end(), 0.0);
    for (const Tree& tree : trees_) {
      for (const Arc arc : tree.arcs) load_[edge_[arc]] += 1.0;
    }
    begin_pass();
  }

  // Polishes the next tree; false after all rounds.
  bool polish_one() {
    if (next_ == trees_.size()) {
      ++round_;
      if (round_ == most_rounds || (!moved_ && round_ > rounds_of_rerouting)) return false;
      next_ = 0;
      moved_ = false;
    }
    Tree& tree = trees_[next_++];
    if (round_ < rounds_of_rerouting) reroute(tree);
    moved_ = shorten(tree) || moved_;
    return true;
  }

  // Rebuilds a tree, unless that would exceed the load of the fullest arc.
  void reroute(Tree& tree) {
    const Tree before = tree;
    remove(tree);
    const bool routed = route(tree);
    if (routed && std::none_of(tree.arcs.begin(), tree.arcs.end(), [&](Arc arc) {
          return load_[edge_[arc]] > best_fullest_ * most_[edge_[arc]] * (1 + 1e-12);
        })) {
      return;
    }
    remove(tree);
    tree = before;
    for (const Arc arc : tree.arcs) {
      load_[edge_[arc]] += 1.0;
      set_price(arc);
    }
  }

  bool shorten(Tree& tree) {
    Hung hung(tree, *this);
    bool moved = false;
    for (std::size_t i = 1; i < hung.order.size(); ++i) {
      const Vertex v = hung.order[i];
      if (hung.depth[v] + hung.height[v] <= deepest_) continue;
      const std::vector<Arc> way = nearer(hung, v);
      if (way.empty()) continue;
      for (const Arc arc : hung.way[v]) load_[edge_[arc]] -= 1.0;
      for (const Arc arc : way) load_[edge_[arc]] += 1.0;
      for (const Arc arc : hung.way[v]) set_price(arc);
      for (const Arc arc : way) set_price(arc);
      hung.way[v] = way;
      hung.settle(tail_[way.front()], v);
      moved = true;
    }
    if (moved) hung.write(tree);
    return moved;
  }

  // The path to v from a terminal closer to the root with room for another child; empty if none is closer than now.
  std::vector<Arc> nearer(const Hung& hung, Vertex v) {
    std::fill(label_.begin(), label_.end(), Label{});
    std::vector<Vertex> queue{v};
    Vertex best = -1;
    for (std::size_t next = 0; next < queue.size(); ++next) {
      for (const Arc arc : entering_[queue[next]]) {
        const Vertex u = tail_[arc];
        const auto& mine = hung.way[v];
        const bool may = room(arc) || std::find(mine.begin(), mine.end(), arc) != mine.end();
        if (!may || u == v || label_[u].by >= 0) continue;
        label_[u].by = arc;
        if (u >= terminals_) {
          queue.push_back(u);
        } else if (hung.depth[u] < hung.depth[v] - 1 && (best < 0 || hung.depth[u] < hung.depth[best])) {
          best = u;
        }
      }
    }
    std::vector<Arc> way;
    for (Vertex u = best; u >= 0 && u != v; u = head_[way.back()]) way.push_back(label_[u].by);
    return way;
  }

  Vertex terminals_;
  std::int32_t deepest_;
  double goal_, least_most_ = 1.0, steep_ = 0.0, part_ = 0.0, best_fullest_ = 0.0;
  std::vector<Vertex> tail_, head_;
  std::vector<Arc> edge_;
  std::vector<double> most_, load_, price_;  // by edge
  std::vector<std::vector<Arc>> leaving_, entering_;
  std::vector<Label> label_;
  std::vector<std::int32_t> depth_;  // by terminal, of the growing tree; -1 if not reached
  std::vector<Vertex> joined_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> waiting_;
  std::vector<Tree> trees_, best_;
  std::size_t pass_ = 0, next_ = 0;
  bool polishing_ = false, moved_ = false;
  int round_ = 0;
};

namespace {

Hung::Hung(const Tree& tree, const blink_trees& of) {
  const std::size_t count = tree.first.size();
  parent.assign(count, -1);
  depth.assign(count, 0);
  height.assign(count, 0);
  way.resize(count);
  order.push_back(tree.root);
  for (std::size_t hop = 0; hop + 1 < count; ++hop) {
    const auto begin = tree.arcs.begin() + tree.first[hop], end = tree.arcs.begin() + tree.first[hop + 1];
    const Vertex u = of.tail(*begin), v = of.head(*(end - 1));
    parent[v] = u;
    depth[v] = depth[u] + 1;
    way[v].assign(begin, end);
    order.push_back(v);
  }
  std::stable_sort(order.begin(), order.end(), [&](Vertex a, Vertex b) { return depth[a] < depth[b]; });
  measure();
}

}  // namespace

extern "C" blink_trees* blink_trees_new(const blink_arcs* arcs, int64_t terminals, const int32_t* roots, int64_t trees,
                                        int64_t depth, const int32_t* edges, const double* most, double goal) {
  try {
    return new blink_trees(*arcs, terminals, roots, trees, depth, edges, most, goal);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

extern "C" int blink_trees_run(blink_trees* trees, double seconds) {
  try {
    return trees->run(seconds);
  } catch (const std::bad_alloc&) {
    return BLINK_PACKING_NO_MEMORY;
  }
}

extern "C" int64_t blink_trees_length(const blink_trees* trees) {
  int64_t total = 0;
  for (const Tree& tree : trees->best()) total += static_cast<int64_t>(tree.arcs.size() + tree.first.size() - 1);
  return total;
}

extern "C" void blink_trees_read(const blink_trees* trees, int32_t* hops) {
  for (const Tree& tree : trees->best()) {
    for (std::size_t hop = 0; hop + 1 < tree.first.size(); ++hop) {
      *hops++ = trees->tail(tree.arcs[static_cast<std::size_t>(tree.first[hop])]);
      for (auto i = tree.first[hop]; i < tree.first[hop + 1]; ++i) {
        *hops++ = trees->head(tree.arcs[static_cast<std::size_t>(i)]);
      }
    }
  }
}

extern "C" void blink_trees_free(blink_trees* trees) { delete trees; }
