#include "bundles.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "deadline.h"
#include "planner.h"

namespace blink::mpi {
namespace {

constexpr const char* kModule = "blinkccl.runtime.host_bundle";
constexpr double kPlanS = 60;

struct Bundles {
  std::mutex mutex;
  std::map<int, std::pair<std::string, std::string>> made;  // path, and the error if there is no file
  std::map<std::pair<std::string, int>, std::shared_ptr<blink_bundle>> open;
};
Bundles& bundles() {
  static Bundles* const all = new Bundles;  // never destroyed, since communicators may be freed at the very end
  return *all;
}

// Searches the bundles that existed when the program was started: one "RANKS PATH" per line.
std::string known_bundle(int ranks) {
  const char* const known = std::getenv("BLINK_MPI_BUNDLES");
  std::istringstream lines(known == nullptr ? "" : known);
  const std::string start = std::to_string(ranks) + " ";
  for (std::string line, why; std::getline(lines, line);) {
    if (line.compare(0, start.size(), start) == 0 && open_bundle(line.substr(start.size()), ranks, &why) != nullptr) {
      return line.substr(start.size());
    }
  }
  return "";
}

}  // namespace

std::string bundle_for(int ranks, std::string* why) {
  const std::string known = known_bundle(ranks);
  if (!known.empty()) return known;
  Bundles& all = bundles();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto& [path, trouble] = all.made[ranks];
  if (path.empty() && trouble.empty()) {  // once, since an error would recur for every communicator
    const Deadline deadline(seconds_from("BLINK_PLAN_TIMEOUT", kPlanS));
    if (!shim::run_python(kModule, {std::to_string(ranks)}, "", deadline, &path, &trouble)) path.clear();
  }
  *why = trouble;
  return path;
}

std::shared_ptr<blink_bundle> open_bundle(const std::string& path, int ranks, std::string* why) {
  Bundles& all = bundles();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::shared_ptr<blink_bundle>& bundle = all.open[{path, ranks}];
  if (bundle == nullptr) {
    blink_error error{};
    blink_bundle* const opened = blink_bundle_open(path.c_str(), ranks, &error);
    if (opened == nullptr) *why = path + ": " + error.text;
    else bundle.reset(opened, blink_bundle_close);
  }
  return bundle;
}

}  // namespace blink::mpi
