// How the ranks of a new communicator get from "all are here" to "all can launch": five rounds of messages, after each of
// which every rank knows whether every rank has got so far.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "bundle.h"
#include "engine.h"
#include "bootstrap.h"
#include "shared_page.h"

namespace blink::shim {

// What a communicator has that runs on trees.
struct Resources {
  Bundle bundle;
  std::shared_ptr<SharedPage> page;
  std::unique_ptr<Engine> engine;  // goes first: it uses the other two
};

struct Place {
  int nranks = 0, rank = 0, device = 0;
  int nccl_version = 0;     // 0: there is none to leave anything to
  std::string algorithm;    // where it is empty, BLINK_ALGO's
};

// The same outcome on all ranks: an object, or nullptr and why. Every wait ends by BLINK_PLAN_TIMEOUT (120 s) and some,
// or when `cancelled` is raised, which the other ranks see as a rank that has gone.
std::unique_ptr<Resources> set_up(Bootstrap* bootstrap, const Place& place, double grace_s,
                                  const std::atomic<bool>& cancelled, std::string* why);

}  // namespace blink::shim
