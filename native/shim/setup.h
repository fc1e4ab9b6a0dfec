// What a communicator has that runs on trees: how its ranks get it, and how they give it back. From "all are here" to
// "all can launch" it is five rounds of messages, after each of which every rank knows whether every rank has got so far.
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

// Gives back what a communicator had when no peer has it mapped any more. A peer's last store may still be on its way
// when this rank has finished, and to free what another process has open is undefined. So when its own launches have
// ended a rank says SharedPage::done(); when all have, each closes its peers' memory and says SharedPage::closed(); when
// all have, each frees its own: in this call, or later in a thread of its own. What a peer has mapped is never freed:
// where one has died, or its process has ended before it closed, it stays with this process. Where the setup failed
// there may be no engine, but the page waits for this rank's word all the same.
void release_when_unmapped(std::unique_ptr<Resources> resources);

}  // namespace blink::shim
