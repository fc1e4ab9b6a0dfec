// Maximum flows: single ones, tests of a rate, and the units that can be split off at a pair of arcs.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "flow.h"

using namespace blink::packing;

namespace {

// The network and a source behind its vertices, with arcs for all `joined` units.
template <class Units>
FlowGraph<Units> with_source(const blink_arcs& arcs, std::int64_t terminals, const blink_units* joined,
                             std::int32_t more_vertices = 0, std::int64_t more_arcs = 0) {
  FlowGraph<Units> graph(arcs, 1 + more_vertices, terminals + more_arcs);
  for (std::int32_t v = 0; v < static_cast<std::int32_t>(terminals); ++v) {
    graph.add(static_cast<std::int32_t>(arcs.vertices), v, read<Units>(joined[v]));
  }
  return graph;
}

template <class Units>
Units total_of(const blink_units* units, std::int64_t count) {
  Units total = 0;
  for (std::int64_t i = 0; i < count; ++i) total += read<Units>(units[i]);
  return total;
}

template <class Units>
int add_flow(const blink_arcs& arcs, blink_units* residual, std::int32_t source, std::int32_t sink, blink_units* units) {
  FlowGraph<Units> graph(arcs);
  graph.finish();
  const std::vector<Units> before = read<Units>(residual, 2 * arcs.arcs);
  graph.capacity = before;
  const Units added = graph.max_flow(source, sink, read<Units>(*units));
  *units = written(added >= infinite<Units> ? infinite<Wide> : added);
  for (std::size_t e = 0; e < before.size(); ++e) {
    residual[e] = written(wide(residual[e]) + (graph.capacity[e] - before[e]));
  }
  return BLINK_PACKING_DONE;
}

template <class Units>
int all_reach(const blink_arcs& arcs, std::int64_t terminals, const blink_units* joined, std::int64_t* sink,
              std::uint8_t* side) {
  const auto source = static_cast<std::int32_t>(arcs.vertices);
  FlowGraph<Units> graph = with_source<Units>(arcs, terminals, joined);
  graph.finish();
  const auto total = total_of<Units>(joined, terminals);
  const std::vector<Units> empty = graph.capacity;
  for (std::int64_t asked = 0; asked < terminals; ++asked) {
    const auto v = static_cast<std::int32_t>((*sink + asked) % terminals);
    graph.capacity = empty;
    if (graph.max_flow(source, v, total) == total) continue;
    *sink = v;
    graph.source_side(source, side, source);
    return BLINK_PACKING_DOES_NOT_FIT;
  }
  return BLINK_PACKING_DONE;
}

template <class Units>
int least_flow(const blink_arcs& arcs, std::int64_t terminals, std::int32_t root, blink_units* least,
               std::uint8_t* side) {
  FlowGraph<Units> graph(arcs);
  graph.finish();
  const std::vector<Units> empty = graph.capacity;
  Units best = infinite<Units>;
  for (std::int32_t sink = 0; sink < static_cast<std::int32_t>(terminals); ++sink) {
    if (sink == root) continue;
    graph.capacity = empty;
    const Units value = graph.max_flow(root, sink, best);
    if (value >= best) continue;
    best = value;
    graph.source_side(root, side, static_cast<std::int32_t>(arcs.vertices));
  }
  *least = written(best);
  return BLINK_PACKING_DONE;
}

// The network with a source of all `joined` units, and a sink; any vertex may be merged with either.
template <class Units>
class Spare {
 public:
  Spare(const blink_arcs& arcs, std::int64_t terminals, const blink_units* joined)
      : source_(static_cast<std::int32_t>(arcs.vertices)),
        graph_(with_source<Units>(arcs, terminals, joined, 1, 2 * arcs.vertices)),
        total_(total_of<Units>(joined, terminals)) {
    first_here_ = graph_.add(source_, 0, 0);
    for (std::int32_t v = 1; v < source_; ++v) graph_.add(source_, v, 0);
    first_there_ = graph_.add(0, source_ + 1, 0);
    for (std::int32_t v = 1; v < source_; ++v) graph_.add(v, source_ + 1, 0);
    graph_.finish();
    empty_ = graph_.capacity;
  }

  // The excess over all joined units of every cut with `here` on the source's side and `there` on the other.
  Units of(std::initializer_list<std::int32_t> here, std::initializer_list<std::int32_t> there, Units wanted) {
    if (wanted == 0) return 0;
    graph_.capacity = empty_;
    for (const std::int32_t v : here) graph_.capacity[static_cast<std::size_t>(first_here_ + 2 * v)] = infinite<Units>;
    for (const std::int32_t v : there) graph_.capacity[static_cast<std::size_t>(first_there_ + 2 * v)] = infinite<Units>;
    const Units most = graph_.max_flow(source_, source_ + 1, total_ + wanted) - total_;
    return std::max(Units{0}, std::min(wanted, most));
  }

 private:
  std::int32_t source_;
  FlowGraph<Units> graph_;
  Units total_;
  std::int32_t first_here_ = 0, first_there_ = 0;
  std::vector<Units> empty_;
};

template <class Units>
int admissible(const blink_arcs& arcs, std::int64_t terminals, const blink_units* joined, const std::int32_t* pair,
               blink_units* units, std::int32_t* order) {
  const std::int32_t u = pair[0], w = pair[1], t = pair[2];
  const bool is_terminal = std::min(u, t) < terminals;
  auto wanted = read<Units>(*units);
  Spare<Units> spare(arcs, terminals, joined);
  if (is_terminal) wanted = spare.of({w}, {u, t}, wanted);
  for (std::int64_t asked = 0; asked < terminals; ++asked) {
    const std::int32_t v = order[asked];
    if (!is_terminal) wanted = spare.of({w}, {u, t, v}, wanted);
    if (v != u && v != t) wanted = spare.of({u, t}, {v, w}, wanted);
    if (wanted == 0) {
      std::rotate(order, order + asked, order + asked + 1);
      break;
    }
  }
  *units = written(wanted);
  return BLINK_PACKING_DONE;
}

}  // namespace

extern "C" uint32_t blink_packing_abi(void) { return BLINK_ABI; }

extern "C" int blink_max_flow(const blink_arcs* arcs, blink_units* residual, int64_t source, int64_t sink,
                              blink_units* units) {
  return in_units(Sums().add(residual, 2 * arcs->arcs), [&](auto zero) {
    return add_flow<decltype(zero)>(*arcs, residual, static_cast<std::int32_t>(source), static_cast<std::int32_t>(sink),
                                    units);
  });
}

extern "C" int blink_all_reach(const blink_arcs* arcs, int64_t terminals, const blink_units* joined, int64_t* sink,
                               uint8_t* side) {
  return in_units(Sums().add(arcs->capacity, arcs->arcs).add(joined, terminals), [&](auto zero) {
    return all_reach<decltype(zero)>(*arcs, terminals, joined, sink, side);
  });
}

extern "C" int blink_least_flow(const blink_arcs* arcs, int64_t terminals, int64_t root, blink_units* least,
                                uint8_t* side) {
  return in_units(Sums().add(arcs->capacity, arcs->arcs), [&](auto zero) {
    return least_flow<decltype(zero)>(*arcs, terminals, static_cast<std::int32_t>(root), least, side);
  });
}

extern "C" int blink_admissible(const blink_arcs* arcs, int64_t terminals, const blink_units* joined,
                                const int32_t* pair, blink_units* units, int32_t* order) {
  return in_units(Sums().add(arcs->capacity, arcs->arcs).add(joined, terminals), [&](auto zero) {
    return admissible<decltype(zero)>(*arcs, terminals, joined, pair, units, order);
  });
}
