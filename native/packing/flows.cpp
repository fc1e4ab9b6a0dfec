// Single flows, those that test a rate, and those that a pair of arcs can be split off by: blinkccl/trees/packing/maxflow.py,
// bottleneck.py and splitting.py.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <vector>

#include "blink/packing.h"
#include "flow.h"

using blink::packing::FlowGraph;
using blink::packing::infinite;

extern "C" uint32_t blink_packing_abi(void) { return BLINK_ABI; }

extern "C" int64_t blink_max_flow(const blink_arcs* arcs, int64_t* residual, int64_t source, int64_t sink,
                                  int64_t limit) {
  try {
    FlowGraph graph(static_cast<std::int32_t>(arcs->vertices));
    graph.reserve(static_cast<std::size_t>(arcs->arcs));
    for (std::int64_t i = 0; i < arcs->arcs; ++i) graph.add(arcs->tail[i], arcs->head[i], 0);
    graph.finish();
    std::copy(residual, residual + 2 * arcs->arcs, graph.capacity.begin());
    const auto added = graph.max_flow(static_cast<std::int32_t>(source), static_cast<std::int32_t>(sink), limit);
    std::copy(graph.capacity.begin(), graph.capacity.end(), residual);
    return added;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

extern "C" int blink_all_reach(const blink_arcs* arcs, int64_t terminals, const int64_t* joined, int64_t* sink,
                               uint8_t* side) {
  try {
    const auto source = static_cast<std::int32_t>(arcs->vertices);
    const auto count = static_cast<std::int32_t>(terminals);
    FlowGraph graph(source + 1);
    graph.reserve(static_cast<std::size_t>(arcs->arcs + terminals));
    for (std::int64_t i = 0; i < arcs->arcs; ++i) graph.add(arcs->tail[i], arcs->head[i], arcs->capacity[i]);
    std::int64_t total = 0;
    for (std::int32_t v = 0; v < count; ++v) {
      graph.add(source, v, joined[v]);
      total += joined[v];
    }
    graph.finish();
    const std::vector<std::int64_t> empty = graph.capacity;
    for (std::int32_t asked = 0; asked < count; ++asked) {
      const auto v = static_cast<std::int32_t>((*sink + asked) % terminals);
      std::copy(empty.begin(), empty.end(), graph.capacity.begin());
      if (graph.max_flow(source, v, total) == total) continue;
      *sink = v;
      graph.source_side(source, side, source);
      return BLINK_PACKING_DOES_NOT_FIT;
    }
    return BLINK_PACKING_DONE;
  } catch (const std::bad_alloc&) {
    return BLINK_PACKING_NO_MEMORY;
  }
}

extern "C" int64_t blink_least_flow(const blink_arcs* arcs, int64_t terminals, int64_t root, uint8_t* side) {
  try {
    const auto source = static_cast<std::int32_t>(root), vertices = static_cast<std::int32_t>(arcs->vertices);
    FlowGraph graph(vertices);
    graph.reserve(static_cast<std::size_t>(arcs->arcs));
    for (std::int64_t i = 0; i < arcs->arcs; ++i) graph.add(arcs->tail[i], arcs->head[i], arcs->capacity[i]);
    graph.finish();
    const std::vector<std::int64_t> empty = graph.capacity;
    std::int64_t least = infinite;
    for (std::int32_t sink = 0; sink < static_cast<std::int32_t>(terminals); ++sink) {
      if (sink == source) continue;
      std::copy(empty.begin(), empty.end(), graph.capacity.begin());
      const std::int64_t value = graph.max_flow(source, sink, least);
      if (value >= least) continue;
      least = value;
      graph.source_side(source, side, vertices);
    }
    return least;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

namespace {

// The network with a source of all that is joined, and a sink; any vertex may be merged with either.
class Spare {
 public:
  Spare(const blink_arcs& arcs, std::int32_t terminals, const std::int64_t* joined)
      : source_(static_cast<std::int32_t>(arcs.vertices)), graph_(source_ + 2) {
    graph_.reserve(static_cast<std::size_t>(arcs.arcs + 3 * arcs.vertices));
    for (std::int64_t i = 0; i < arcs.arcs; ++i) graph_.add(arcs.tail[i], arcs.head[i], arcs.capacity[i]);
    for (std::int32_t r = 0; r < terminals; ++r) {
      graph_.add(source_, r, joined[r]);
      total_ += joined[r];
    }
    first_here_ = graph_.add(source_, 0, 0);
    for (std::int32_t v = 1; v < source_; ++v) graph_.add(source_, v, 0);
    first_there_ = graph_.add(0, source_ + 1, 0);
    for (std::int32_t v = 1; v < source_; ++v) graph_.add(v, source_ + 1, 0);
    graph_.finish();
    empty_ = graph_.capacity;
  }

  // What every cut with `here` on the side of the source, and `there` on the other, has beyond all that is joined.
  std::int64_t of(std::initializer_list<std::int32_t> here, std::initializer_list<std::int32_t> there,
                  std::int64_t wanted) {
    if (wanted == 0) return 0;
    graph_.capacity = empty_;
    for (const std::int32_t v : here) graph_.capacity[static_cast<std::size_t>(first_here_ + 2 * v)] = infinite;
    for (const std::int32_t v : there) graph_.capacity[static_cast<std::size_t>(first_there_ + 2 * v)] = infinite;
    const std::int64_t most = graph_.max_flow(source_, source_ + 1, total_ + wanted) - total_;
    return std::max<std::int64_t>(0, std::min(wanted, most));
  }

 private:
  std::int32_t source_;
  FlowGraph graph_;
  std::int64_t total_ = 0;
  std::int32_t first_here_ = 0, first_there_ = 0;
  std::vector<std::int64_t> empty_;
};

}  // namespace

extern "C" int64_t blink_admissible(const blink_arcs* arcs, int64_t terminals, const int64_t* joined,
                                    const int32_t* pair, int64_t wanted, int32_t* order) {
  try {
    const std::int32_t u = pair[0], w = pair[1], t = pair[2];
    const bool is_terminal = std::min(u, t) < terminals;
    Spare spare(*arcs, static_cast<std::int32_t>(terminals), joined);
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
    return wanted;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
