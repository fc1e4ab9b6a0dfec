// The plans of this host for some ranks: a file that Python writes at first use (blinkccl/runtime/host_bundle.py).
#pragma once

#include <memory>
#include <string>

#include "blink/host.h"

namespace blink::mpi {

// The path of the file, written now if missing; empty and `why` on an error or after BLINK_PLAN_TIMEOUT seconds.
std::string bundle_for(int ranks, std::string* why);
// Opens that file, once per process; null and `why` on an error.
std::shared_ptr<blink_bundle> open_bundle(const std::string& path, int ranks, std::string* why);

}  // namespace blink::mpi
