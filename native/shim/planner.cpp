#include "planner.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "child.h"
#include "log.h"

extern char** environ;

namespace blink::shim {
namespace {

constexpr const char* kModule = "blinkccl.nccl.planner";
constexpr const char* kOurs = "libblink.so";
constexpr int kMostLogged = 20;  // lines of its stderr

// LD_PRELOAD's list, separated by colons or spaces, without this library.
std::string without_us(const std::string& list) {
  std::string rest;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find_first_of(": ", at), list.size());
    const std::string entry = list.substr(at, end - at);
    const std::string name = entry.substr(entry.rfind('/') + 1);  // npos + 1 is 0
    if (!entry.empty() && name != kOurs) rest += (rest.empty() ? "" : ":") + entry;
    at = end + 1;
  }
  return rest;
}

// Ours, for a child that must not interpose anything.
std::vector<std::string> variables_of_child() {
  const std::string preload = "LD_PRELOAD=";
  std::vector<std::string> variables;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    std::string variable = *at;
    if (variable.compare(0, preload.size(), preload) == 0) {
      const std::string others = without_us(variable.substr(preload.size()));
      if (others.empty()) continue;
      variable = preload + others;
    }
    variables.push_back(std::move(variable));
  }
  variables.push_back("PYTHONSAFEPATH=1");  // a job's directory may have a types.py of its own
  return variables;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

std::string how_it_ended(int status) {
  if (WIFEXITED(status)) return "ended with status " + std::to_string(WEXITSTATUS(status));
  return "was ended by signal " + std::to_string(WTERMSIG(status));
}

// Why there is no bundle, of a planner that has run; empty if there is one, then in `directory`.
std::string trouble(const Ended& ended, std::string* directory) {
  const std::string bundle = "bundle ", refused = "refused ";
  if (!ended.in_time && ended.out.size() > kMostOutBytes) return "has written too much to its stdout";
  if (!ended.in_time) return "has not ended by its deadline (BLINK_PLAN_TIMEOUT)";
  const std::vector<std::string> lines = lines_of(ended.out);
  const std::string last = lines.empty() ? "" : lines.back();
  if (last.compare(0, refused.size(), refused) == 0) return "says: " + last.substr(refused.size());
  if (ended.known && ended.status != 0) return how_it_ended(ended.status);
  if (last.compare(0, bundle.size(), bundle) != 0 || last.size() == bundle.size()) {
    return "has written " + quoted(last.substr(0, 200)) + "; expected bundle DIRECTORY or refused REASON";
  }
  *directory = last.substr(bundle.size());
  return "";
}

}  // namespace

bool run_planner(const std::vector<std::string>& infos, const Deadline& deadline, std::string* directory,
                 std::string* why) {
  const char* named = std::getenv("BLINK_PYTHON");
  const std::string python = named != nullptr && *named != '\0' ? named : "python3";
  std::string input = "[";
  for (const std::string& info : infos) input += (input.size() == 1 ? "" : ",\n") + info;
  input += "]\n";

  const std::string planner = "the planner (" + python + " -m " + kModule + ") ";
  const Ended ended = run_child({python, "-m", kModule}, variables_of_child(), input, deadline);
  if (!ended.started) {
    *why = planner + "cannot be started: " + ended.why;
    return false;
  }
  const std::string found = trouble(ended, directory);
  const std::vector<std::string> lines = lines_of(ended.err);
  const std::size_t first = lines.size() > kMostLogged ? lines.size() - kMostLogged : 0;
  for (std::size_t i = first; i < lines.size(); ++i) {
    log(found.empty() ? Level::kInfo : Level::kWarn, "planner: " + lines[i]);
  }
  if (found.empty()) return true;
  *why = planner + found;
  // Python says last what was wrong; who refuses has said it.
  const bool refused = ended.in_time && (!ended.known || ended.status == 0);
  if (!lines.empty() && !refused) *why += "; the last that it said: " + lines.back().substr(0, 500);
  return false;
}

}  // namespace blink::shim
