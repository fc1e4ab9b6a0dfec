// The cases of the client, in this order: run_errors, ….
#pragma once

#include "check.h"

#define CASES(X)                                                                                                 \
  X(errors) X(types) X(sizes) X(configs) X(scaled) X(messages) X(exchange) X(groups) X(streams) X(legacy_stream) X(several) \
  X(graph) X(graph_fork) X(graph_order) X(graph_lost) X(split) X(shrink) X(grow) X(nonblocking) X(finalize)     \
  X(abort)

// Cases that run only if they are named.
#define LONG_CASES(X) X(six)

// Messages of int32, `place` bytes into the buffers, on the local stream.
void send_and_receive(struct World* world, const struct Local* local, int to, int from, size_t count, size_t place);
void fill_message(struct World* world, const struct Local* local, int from, size_t count, size_t place);
void look_at_message(struct World* world, const struct Local* local, int from, size_t count, size_t place);

#define CASE_FUNCTION(name) void run_##name(struct World* world);
CASES(CASE_FUNCTION)
LONG_CASES(CASE_FUNCTION)
#undef CASE_FUNCTION
