// Resources of communicators that have ended (setup.h).

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "setup.h"

namespace blink::shim {
namespace {

struct Ended {
  std::mutex mutex;
  std::vector<std::unique_ptr<Resources>> all;
};

bool has_ended(const std::unique_ptr<Resources>& one) {
  if (one->engine != nullptr && !one->engine->drain(0)) return false;
  one->page->done();  // this rank no longer writes to any peer
  return true;
}

}  // namespace

void release_when_ended(std::unique_ptr<Resources> resources) {
  static Ended* const ended = new Ended;  // freed with the process
  const std::lock_guard<std::mutex> lock(ended->mutex);
  ended->all.push_back(std::move(resources));
  ended->all.erase(std::remove_if(ended->all.begin(), ended->all.end(), has_ended), ended->all.end());
}

}  // namespace blink::shim
