// Runs the planner, a Python program, from inside of somebody else's process: without a fork of its memory, without its
// descriptors, signals and LD_PRELOAD, in a process group of its own that is killed as a whole, and never as a zombie.
#pragma once

#include <string>
#include <vector>

#include "deadline.h"

namespace blink::shim {

// Runs `$BLINK_PYTHON -m blinkccl.nccl.planner`, gives it what the ranks say of themselves (a JSON array) on stdin and
// reads one line from its stdout: "bundle DIRECTORY", "refused REASON" or "uncompiled REASON". It is killed, with what it
// started, when the deadline passes. False and `why` if there is no bundle. That code could not be compiled is a warning,
// the first time in a process.
bool run_planner(const std::vector<std::string>& infos, const Deadline& deadline, std::string* directory,
                 std::string* why);

// Runs `$BLINK_PYTHON -m MODULE WORDS…` with `input` on its stdin, as above; `line` is the last one of its stdout. False
// and `why` if it did not end well.
bool run_python(const std::string& module, const std::vector<std::string>& words, const std::string& input,
                const Deadline& deadline, std::string* line, std::string* why);

}  // namespace blink::shim
