// The situations that the client plays through, in this order: run_errors, ….
#pragma once

#include "check.h"

#define CASES(X)                                                                                                 \
  X(errors) X(types) X(sizes) X(configs) X(scaled) X(messages) X(exchange) X(groups) X(streams) X(legacy_stream) X(several) \
  X(graph) X(graph_fork) X(graph_order) X(graph_lost) X(split) X(shrink) X(grow) X(nonblocking) X(finalize)     \
  X(abort)

#define CASE_FUNCTION(name) void run_##name(struct World* world);
CASES(CASE_FUNCTION)
#undef CASE_FUNCTION
