// Which situations does the client play through?
#pragma once

#include "check.h"

struct Case {
  const char* name;
  void (*run)(struct World* world);
};

extern const struct Case kCases[];  // ends with a null name

void run_types(struct World* world);
void run_sizes(struct World* world);
void run_configs(struct World* world);
void run_scaled(struct World* world);
void run_groups(struct World* world);
void run_messages(struct World* world);
void run_streams(struct World* world);
void run_legacy_stream(struct World* world);
void run_several(struct World* world);
void run_graph(struct World* world);
void run_graph_fork(struct World* world);
void run_graph_order(struct World* world);
void run_graph_lost(struct World* world);
void run_split(struct World* world);
void run_shrink(struct World* world);
void run_grow(struct World* world);
void run_nonblocking(struct World* world);
void run_finalize(struct World* world);
void run_abort(struct World* world);
void run_queries(struct World* world);
void run_registration(struct World* world);
void run_errors(struct World* world);
