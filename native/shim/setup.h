// The resources of a communicator that runs on trees, their setup and their release. From "all ranks are present" to
// "all can launch" the setup takes five rounds of messages, after each of which every rank knows whether all succeeded.
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

// The resources of a communicator that runs on trees.
struct Resources {
  Bundle bundle;
  std::shared_ptr<SharedPage> page;
  std::unique_ptr<Engine> engine;  // destroyed first, since it uses the other two
};

struct Place {
  int nranks = 0, rank = -1, device = -1;
  double grace_s = 0;       // as in Bootstrap::all_gather
  unsigned multiprocessors = UINT_MAX;  // usable by the program's context; limited to the GPU's number
  int nccl_version = 0;     // 0: there is no NCCL
  bool without_nccl = false;  // the plan serves all sizes, with any algorithm; else BLINK_ALGO's
  Wishes wishes;
};

// Sets up a communicator, with the same outcome on all ranks: an object, or nullptr and `why`. Every wait ends about 20
// s after BLINK_PLAN_TIMEOUT (120 s), or when `cancelled` is set, which peers see as a lost rank.
std::unique_ptr<Resources> set_up(Bootstrap* bootstrap, const Place& place, const std::atomic<bool>& cancelled,
                                  std::string* why);

// Releases a communicator's resources once its launches have ended: now, or when another communicator ends. Then this
// rank calls SharedPage::done(), and its memory stays for later communicators (pool.h). After a failed setup there may
// be no engine, but peers still wait for done(). Waits for nothing and frees nothing, in any thread.
void release_when_ended(std::unique_ptr<Resources> resources);

}  // namespace blink::shim
