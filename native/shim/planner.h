// Runs the planner, a Python program, from inside of somebody else's process: without a fork of its memory, without its
// descriptors and signals, in a process group of its own that is killed as a whole, and never as a zombie.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "deadline.h"

namespace blink::shim {

struct Ended {
  bool started = false, in_time = false;
  bool known = false;  // false: the program that we are in has reaped it, and how it ended is lost
  int status = 0;      // of waitpid
  std::string why;     // where it did not start
  std::string out, err;  // what it wrote; of err the last kMostErrBytes
};

constexpr std::size_t kMostOutBytes = 64 << 10, kMostErrBytes = 16 << 10;

// Runs `words` (the first is looked for on PATH) with `variables` as its environment and `input` on its stdin until it
// ends, or kills it and what it started at the deadline, or when it writes more than kMostOutBytes to its stdout.
Ended run_child(const std::vector<std::string>& words, const std::vector<std::string>& variables,
                const std::string& input, const Deadline& deadline);

// Runs `$BLINK_PYTHON -m blinkccl.nccl.planner`, gives it what the ranks say of themselves (a JSON array) on stdin and reads one line from its
// stdout: "bundle DIRECTORY" or "refused REASON". The child has neither our LD_PRELOAD nor any descriptor of ours but
// 0, 1 and 2; it is killed, with what it started, when the deadline passes, and never becomes a zombie.
// False and `why` if there is no bundle.
bool run_planner(const std::vector<std::string>& infos, const Deadline& deadline, std::string* directory,
                 std::string* why);

}  // namespace blink::shim
