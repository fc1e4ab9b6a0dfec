// What has happened when an event has? The work that its stream held when it was last recorded.
#pragma once

#include <memory>
#include <vector>

#include "streams.h"

struct CUevent_st {
  int device = 0;
  bool timed = true;
  cuda_double::OpPtr recorded;
  std::shared_ptr<cuda_double::Capture> capture;  // it was last recorded in a stream that was being captured
  std::vector<int> heads;
};
