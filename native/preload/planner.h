// Runs the planner, a Python program, from another program's process: without a copy of its memory, without its
// descriptors, signals and LD_PRELOAD. It runs in a process group of its own, which is killed as a whole, and is always
// reaped.
#pragma once

#include <string>
#include <vector>

#include "deadline.h"

namespace blink::shim {

// Runs `$BLINK_PYTHON -m blinkccl.nccl.planner` with the ranks' descriptions (a JSON array) on stdin, and reads one
// line from its stdout: "bundle DIRECTORY", "refused REASON" or "uncompiled REASON". After the timeout it is killed
// with its children. False and `why` without a bundle. The first "uncompiled" in a process is logged as a warning.
bool run_planner(const std::vector<std::string>& infos, const Deadline& deadline, std::string* directory,
                 std::string* why);

// Runs `$BLINK_PYTHON -m MODULE WORDS…` with `input` on stdin, as above; `line` is the last line of its stdout. False
// and `why` on an error.
bool run_python(const std::string& module, const std::vector<std::string>& words, const std::string& input,
                const Deadline& deadline, std::string* line, std::string* why);

}  // namespace blink::shim
