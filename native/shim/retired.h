// When may a rank's memory be given back? When all ranks have said that they need nobody's memory any more: a peer's
// last store may still be on its way when this rank has finished. Nobody waits for that in a call of NCCL's.
#pragma once

#include <memory>

#include "setup.h"

namespace blink::shim {

// Takes what a communicator had. Says Board::done() when its own launches have ended, and frees it when everybody has
// said so: in this call, or later in a thread of its own. What a peer may still write into is never freed: where one
// has died it stays until the process ends.
void retire(std::unique_ptr<Live> live);

}  // namespace blink::shim
