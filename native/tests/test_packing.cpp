// Sanitizers: address.
// Flows and packings of small networks with known values, with all memory checked, in numbers of 64 and of 128 bits.
#include <cassert>
#include <cstdint>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "blink/packing.h"

namespace {

// The high half of one unit of capacity: large ones need 128 bits.
std::uint64_t unit_high = 0;

blink_units units_of(std::int64_t number) {
  const auto times = static_cast<std::uint64_t>(number);
  return unit_high ? blink_units{0, times * unit_high} : blink_units{times, 0};
}
std::vector<blink_units> units_of(const std::vector<std::int64_t>& numbers) {
  std::vector<blink_units> found;
  for (const std::int64_t number : numbers) found.push_back(units_of(number));
  return found;
}
std::int64_t number_of(const blink_units& units) {
  assert(unit_high ? units.low == 0 : units.high == 0);
  return static_cast<std::int64_t>(unit_high ? units.high / unit_high : units.low);
}

struct Network {
  std::int32_t n;
  std::vector<std::int32_t> tail, head;
  std::vector<blink_units> capacity;
  void add(std::int32_t u, std::int32_t v, std::int64_t units) {
    tail.push_back(u);
    head.push_back(v);
    capacity.push_back(units_of(units));
  }
  blink_arcs arcs() const {
    return {n, static_cast<std::int64_t>(tail.size()), tail.data(), head.data(), capacity.data()};
  }
};

Network clique(std::int32_t n, std::int64_t units) {
  Network made{n, {}, {}, {}};
  for (std::int32_t u = 0; u < n; ++u) {
    for (std::int32_t v = 0; v < n; ++v) {
      if (u != v) made.add(u, v, units);
    }
  }
  return made;
}

void flows() {
  const Network net = clique(4, 3);
  std::vector<blink_units> residual;
  for (const auto units : net.capacity) residual.insert(residual.end(), {units, {0, 0}});
  blink_arcs arcs = net.arcs();
  arcs.capacity = nullptr;
  const auto added = [&](blink_units most) {
    assert(blink_max_flow(&arcs, residual.data(), 0, 3, &most) == BLINK_PACKING_DONE);
    return number_of(most);
  };
  const blink_units infinite{0, BLINK_PACKING_INFINITE_HIGH};
  assert(added(units_of(5)) >= 5);
  assert(added(infinite) <= 4);
  assert(added(infinite) == 0);
  residual[4] = infinite;  // the arc 0 → 3
  assert(added(units_of(7)) == 7);
  assert(residual[4].high < BLINK_PACKING_INFINITE_HIGH);
}

void rates() {
  const Network net = clique(4, 3);
  const blink_arcs arcs = net.arcs();
  std::int64_t sink = 2;
  std::vector<std::uint8_t> side(4);
  const std::vector<blink_units> fits = units_of({3, 3, 3, 3}), too_many = units_of({0, 0, 0, 10});
  assert(blink_all_reach(&arcs, 4, fits.data(), &sink, side.data()) == BLINK_PACKING_DONE);
  assert(blink_all_reach(&arcs, 4, too_many.data(), &sink, side.data()) == BLINK_PACKING_DOES_NOT_FIT);
  assert(sink == 2 && side[0] + side[1] == 0 && side[2] == 0 && side[3] == 1);
  blink_units least;
  assert(blink_least_flow(&arcs, 3, 1, &least, side.data()) == BLINK_PACKING_DONE && number_of(least) == 9);
  assert(side[0] + side[2] + side[3] == 0 && side[1] == 1);
}

// Terminals 0, 1 and 2 around switch 3, a unit each way: a pair can be split off whole, but not back to its own tail.
void pairs() {
  Network net{4, {}, {}, {}};
  for (std::int32_t v = 0; v < 3; ++v) {
    net.add(v, 3, 1);
    net.add(3, v, 1);
  }
  const blink_arcs arcs = net.arcs();
  const std::vector<blink_units> demand = units_of({1, 0, 0});
  std::vector<std::int32_t> order{1, 2, 0};
  const std::int32_t onward[] = {0, 3, 1}, back[] = {0, 3, 0};
  for (const auto& [pair, split] : {std::pair{onward, 1}, {back, 0}}) {
    blink_units units = units_of(1);
    assert(blink_admissible(&arcs, 3, demand.data(), pair, &units, order.data()) == BLINK_PACKING_DONE);
    assert(number_of(units) == split);
  }
  assert(order[0] == 1 && order[1] == 2 && order[2] == 0);
}

void packings(bool few) {
  const Network net = clique(5, 4);
  const blink_arcs arcs = net.arcs();
  const std::vector<blink_units> demand(5, units_of(4));
  blink_packer* packer = blink_packer_new(&arcs, demand.data(), few);
  int code;
  while ((code = blink_packer_run(packer, 0.0)) == BLINK_PACKING_GOES_ON) continue;
  assert(code == BLINK_PACKING_DONE);
  const auto count = static_cast<std::size_t>(blink_packer_trees(packer));
  std::vector<std::int32_t> roots(count), ends(count * 4 * 2);
  std::vector<blink_units> units(count);
  blink_packer_read(packer, roots.data(), units.data(), ends.data());
  blink_packer_free(packer);
  std::map<std::pair<int, int>, std::int64_t> load;
  std::vector<std::int64_t> rooted(5);
  for (std::size_t t = 0; t < count; ++t) {
    std::vector<bool> there(5);
    there[roots[t]] = true;
    rooted[roots[t]] += number_of(units[t]);
    for (std::size_t i = 0; i < 4; ++i) {
      const auto u = ends[8 * t + 2 * i], v = ends[8 * t + 2 * i + 1];
      assert(there[u] && !there[v]);
      there[v] = true;
      load[{u, v}] += number_of(units[t]);
    }
  }
  for (const auto& [arc, used] : load) assert(used <= 4 && arc.first != arc.second);
  assert((rooted == std::vector<std::int64_t>(5, 4)));
}

void refusals() {
  const Network net = clique(3, 1);
  const blink_arcs arcs = net.arcs();
  const std::vector<blink_units> demand = units_of({1, 1, 2});
  blink_packer* packer = blink_packer_new(&arcs, demand.data(), 0);
  int code;
  while ((code = blink_packer_run(packer, 1.0)) == BLINK_PACKING_GOES_ON) continue;
  assert(code == BLINK_PACKING_DOES_NOT_FIT);
  blink_packer_free(packer);
}

// Two chains, 0 → 1 → 2 → 3 and 1 → 0 → 3 → 2: unused arcs allow all vertices to rise.
void shallower() {
  Network net = clique(4, 1);
  const blink_arcs arcs = net.arcs();
  const std::vector<blink_units> multiplicity = units_of({1, 1});
  std::vector<std::int32_t> parents{-1, 0, 1, 2, 1, -1, 3, 0};
  int passes = 0;
  while (blink_flatten(&arcs, 2, multiplicity.data(), 0, parents.data()) == BLINK_PACKING_GOES_ON) ++passes;
  assert(passes > 0);
  assert((parents == std::vector<std::int32_t>{-1, 0, 0, 0, 1, -1, 1, 1}));
}

// Two servers of two ranks, each behind a switch, joined by a third switch: every tree spans throughout the search.
void equal_trees(bool both_ways) {
  Network net{7, {}, {}, {}};
  for (const auto& [u, v, units] : {std::tuple{0, 4, 8}, {1, 4, 8}, {2, 5, 8}, {3, 5, 8}, {0, 6, 1}, {2, 6, 1}, {3, 6, 1}}) {
    net.add(u, v, units);
    net.add(v, u, units);
  }
  const blink_arcs arcs = net.arcs();
  std::vector<std::int32_t> edges, roots;
  std::vector<double> most;
  for (std::int32_t arc = 0; arc < static_cast<std::int32_t>(net.tail.size()); ++arc) {
    edges.push_back(both_ways ? arc / 2 * 2 : arc);
    most.push_back(static_cast<double>(number_of(net.capacity[arc])) * 4);
  }
  for (std::int32_t tree = 0; tree < 12; ++tree) roots.push_back(tree % 4);
  blink_trees* trees = blink_trees_new(&arcs, 4, roots.data(), 12, 1, edges.data(), most.data(), 0.5);
  int code;
  while ((code = blink_trees_run(trees, 0.0)) == BLINK_PACKING_GOES_ON) continue;
  assert(code == BLINK_PACKING_DONE);
  std::vector<std::int32_t> hops(static_cast<std::size_t>(blink_trees_length(trees)));
  blink_trees_read(trees, hops.data());
  blink_trees_free(trees);
  std::size_t at = 0;
  for (const std::int32_t root : roots) {
    std::vector<bool> there(4);
    there[root] = true;
    for (int hop = 0; hop < 3; ++hop) {
      assert(there[hops[at]]);
      while (hops[++at] >= 4) continue;
      assert(!there[hops[at]]);
      there[hops[at++]] = true;
    }
  }
  assert(at == hops.size());
}

void unreached() {
  Network net{3, {}, {}, {}};
  net.add(0, 1, 1);
  const blink_arcs arcs = net.arcs();
  const std::int32_t root = 0, edge = 0;
  const double most = 1.0;
  blink_trees* trees = blink_trees_new(&arcs, 3, &root, 1, 1, &edge, &most, 1.0);
  assert(blink_trees_run(trees, 1.0) == BLINK_PACKING_DOES_NOT_FIT);
  assert(blink_trees_length(trees) == 0);
  blink_trees_free(trees);
}

// A ring of five with ascending prices: two hops reach all each way, one does not, and no tree exceeds its depth.
void hop_trees() {
  constexpr int n = 5;
  std::vector<double> price(n * n, std::numeric_limits<double>::infinity());
  for (int v = 0; v < n; ++v) price[v * n + (v + 1) % n] = price[(v + 1) % n * n + v] = v;
  const std::vector<std::int32_t> roots{0, 3};
  std::vector<std::int32_t> parent(roots.size() * BLINK_PACKING_HOP_TREES * n);
  assert(blink_hop_trees(n, price.data(), 1, roots.data(), 2, parent.data()) == BLINK_PACKING_DOES_NOT_FIT);
  for (const int levels : {2, 3, 4}) {
    assert(blink_hop_trees(n, price.data(), levels, roots.data(), 2, parent.data()) == BLINK_PACKING_DONE);
    for (std::size_t tree = 0; tree < parent.size() / n; ++tree) {
      const std::int32_t* up = &parent[tree * n];
      assert(up[roots[tree / BLINK_PACKING_HOP_TREES]] == -1);
      for (int v = 0; v < n; ++v) {
        int hops = 0;
        for (int x = v; up[x] >= 0; x = up[x]) assert(++hops <= levels);
      }
    }
  }
}

}  // namespace

int main() {
  hop_trees();
  for (const std::uint64_t high : {0, 1 << 20}) {
    unit_high = high;
    flows();
    rates();
    pairs();
    packings(false);
    packings(true);
    refusals();
    shallower();
  }
  unit_high = 0;
  equal_trees(false);
  equal_trees(true);
  unreached();
}
