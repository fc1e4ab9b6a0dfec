// What a communicator has that runs on trees: how its ranks get it, and how they give it back. From "all are here" to
// "all can launch" it is five rounds of messages, after each of which every rank knows whether all have got so far.
#pragma once

#include <atomic>
#include <climits>
#include <memory>
#include <string>

#include "bundle.h"
#include "engine.h"
#include "nccl_types.h"
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
  int nranks = 0, rank = -1, device = -1;
  double grace_s = 0;       // as in Bootstrap::all_gather
  unsigned multiprocessors = UINT_MAX;  // of the GPU that the program's context may use; no more than there are
  int nccl_version = 0;     // 0: there is none to leave anything to
  bool without_nccl = false;  // the plan serves all sizes, with any algorithm; else BLINK_ALGO's
  Wishes wishes;
};

// The same outcome on all ranks: an object, or nullptr and why. Every wait ends by BLINK_PLAN_TIMEOUT (120 s) and some,
// or when `cancelled` is raised, which the other ranks see as a rank that has gone.
std::unique_ptr<Resources> set_up(Bootstrap* bootstrap, const Place& place, const std::atomic<bool>& cancelled,
                                  std::string* why);

// Ends what a communicator had, when its launches have ended: now, or when another one ends. Then this rank says
// SharedPage::done(), and its memory is kept for later communicators (pool.h). Where the setup failed there may be no
// engine, but the page waits for this rank's word all the same. Waits for nothing and frees nothing, in any thread.
void release_when_ended(std::unique_ptr<Resources> resources);

}  // namespace blink::shim
