// Who plans? Blink's Python, once per communicator, in a child process of rank 0.
#pragma once

#include <string>
#include <vector>

#include "deadline.h"

namespace blink::shim {

// Runs `$BLINK_PYTHON -m blinkccl.nccl.planner`, gives it what the ranks say of themselves (a JSON array) on stdin and reads one line from its
// stdout: "bundle DIRECTORY" or "refused REASON". The child has neither our LD_PRELOAD nor any descriptor of ours but
// 0, 1 and 2; it is killed, with what it started, when the deadline passes, and never becomes a zombie.
// False and `why` if there is no bundle.
bool run_planner(const std::vector<std::string>& infos, const Deadline& deadline, std::string* directory,
                 std::string* why);

}  // namespace blink::shim
