// Communicators that have ended (setup.h).

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "setup.h"

namespace blink::shim {
namespace {

struct Retired {
  std::mutex mutex;
  std::vector<std::unique_ptr<Resources>> all;
};

bool has_ended(const std::unique_ptr<Resources>& one) {
  if (one->engine != nullptr && !one->engine->drain(0)) return false;
  one->page->done();  // this rank writes nowhere any more
  return true;
}

}  // namespace

void retire(std::unique_ptr<Resources> resources) {
  static Retired* const retired = new Retired;  // with the process
  const std::lock_guard<std::mutex> lock(retired->mutex);
  retired->all.push_back(std::move(resources));
  retired->all.erase(std::remove_if(retired->all.begin(), retired->all.end(), has_ended), retired->all.end());
}

}  // namespace blink::shim
