// Single flows, and the flows that test a rate: blinkccl/packing/maxflow.py and bottleneck.py.
#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "blink/packing.h"
#include "flow.h"

using blink::packing::FlowGraph;

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

extern "C" int blink_all_reach(const blink_arcs* arcs, int64_t terminals, int64_t joined, int64_t* sink,
                               uint8_t* side) {
  try {
    const auto source = static_cast<std::int32_t>(arcs->vertices);
    const auto count = static_cast<std::int32_t>(terminals);
    FlowGraph graph(source + 1);
    graph.reserve(static_cast<std::size_t>(arcs->arcs + terminals));
    for (std::int64_t i = 0; i < arcs->arcs; ++i) graph.add(arcs->tail[i], arcs->head[i], arcs->capacity[i]);
    for (std::int32_t v = 0; v < count; ++v) graph.add(source, v, joined);
    graph.finish();
    const std::vector<std::int64_t> empty = graph.capacity;
    for (std::int32_t asked = 0; asked < count; ++asked) {
      const auto v = static_cast<std::int32_t>((*sink + asked) % terminals);
      std::copy(empty.begin(), empty.end(), graph.capacity.begin());
      if (graph.max_flow(source, v, joined * terminals) == joined * terminals) continue;
      *sink = v;
      graph.source_side(source, side, source);
      return BLINK_PACKING_DOES_NOT_FIT;
    }
    return BLINK_PACKING_DONE;
  } catch (const std::bad_alloc&) {
    return BLINK_PACKING_NO_MEMORY;
  }
}
