// Gives a rank's memory back when no peer has it mapped any more. A peer's last store may still be on its way when this
// rank has finished, and to free what another process has open is undefined. So when all ranks are done, each closes its
// mappings; when all have closed them, each frees its own. No call of NCCL's waits for that.
#pragma once

#include <memory>

#include "setup.h"

namespace blink::shim {

// Takes what a communicator had; where its setup failed there may be no engine, but the page waits for this rank's
// word all the same. Says SharedPage::done() when its own launches have ended, SharedPage::closed() when it has closed its peers'
// memory, and frees its own when everybody has said so: in this call, or later in a thread of its own. What a peer has
// mapped is never freed: where one has died, or its process has ended before it closed, it stays with this process.
void release_when_unmapped(std::unique_ptr<Resources> resources);

}  // namespace blink::shim
