// What was captured, and how is it run again?
#pragma once

#include <memory>
#include <vector>

#include "streams.h"

struct CUgraph_st {
  std::vector<cuda_double::Node> nodes;
};

struct CUgraphExec_st {
  std::shared_ptr<const std::vector<cuda_double::Node>> nodes;
  cuda_double::OpPtr last;  // launches of one executable graph run one after another
};
