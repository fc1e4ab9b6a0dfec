// The plans of this host for so many ranks: a file that Python makes at first use (blinkccl/runtime/host_bundle.py).
#pragma once

#include <memory>
#include <string>

#include "blink/host.h"

namespace blink::mpi {

// The file, made now if it is not there; empty and `why` if that fails or takes longer than BLINK_PLAN_TIMEOUT seconds.
std::string bundle_for(int ranks, std::string* why);
// That file, opened once per process; null and `why`.
std::shared_ptr<blink_bundle> open_bundle(const std::string& path, int ranks, std::string* why);

}  // namespace blink::mpi
