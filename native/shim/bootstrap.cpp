#include "bootstrap.h"

#include <unistd.h>

#include <cstdio>

#include "sha256.h"

namespace blink::shim {
namespace {

// A sentence that names the rank.
std::string sentence(const blink_bootstrap_reason& reason) {
  const std::string text = reason.text;
  if (reason.status == BLINK_BOOTSTRAP_LOST) return "rank " + std::to_string(reason.rank) + " was lost: " + text;
  if (reason.status == BLINK_BOOTSTRAP_FAILED && reason.rank >= 0) {
    return "rank " + std::to_string(reason.rank) + " gives up: " + text;
  }
  return text;
}

// A hash of parts that no other parts have: each with its length.
std::string key_of_parts(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += std::to_string(part.size()) + ":" + part;
  return sha256(text.data(), text.size());
}

}  // namespace

std::unique_ptr<Bootstrap> Bootstrap::announce(const std::string& key, int nranks, int rank, std::string* why) {
  const std::string token = key_of_parts({"bootstrap", key});
  blink_bootstrap_reason reason{};
  blink_bootstrap* const handle = blink_bootstrap_announce(token.c_str(), rank, nranks, &reason);
  if (handle != nullptr) return std::make_unique<Bootstrap>(handle, nranks, rank);
  *why = reason.text;
  return nullptr;
}

bool Bootstrap::all_gather(const std::string& mine, std::vector<std::string>* all, double grace_s,
                           const Deadline& deadline, std::string* why) {
  all->clear();
  if (!round(mine, -1, grace_s, deadline, why)) return false;
  for (int rank = 0; rank < nranks_; ++rank) {
    const void* bytes = nullptr;
    const std::size_t size = blink_bootstrap_bytes(handle_, rank, &bytes);
    all->emplace_back(static_cast<const char*>(bytes), size);
  }
  return true;
}

int Bootstrap::share_descriptor(int descriptor, const Deadline& deadline, std::string* why) {
  if (rank_ == 0 && descriptor < 0) {
    *why = give_up("it has no descriptor to share");
    return -1;
  }
  int shared = -1;
  if (!round("", rank_ == 0 ? descriptor : -1, 0, deadline, why)) return -1;
  if (blink_bootstrap_descriptors(handle_, 0, &shared, 1) != 1) *why = "rank 0 has shared no descriptor";
  return shared;
}

bool Bootstrap::round(const std::string& mine, int descriptor, double grace_s, const Deadline& deadline,
                      std::string* why) {
  int status = blink_bootstrap_all_gather(handle_, mine.data(), mine.size(), &descriptor, descriptor < 0 ? 0 : 1,
                                          grace_s, deadline.left());
  while (status == BLINK_BOOTSTRAP_AGAIN && !deadline.called_off()) {
    status = blink_bootstrap_step(handle_, deadline.left_ms());
  }
  if (status == BLINK_BOOTSTRAP_OK) return true;
  if (status == BLINK_BOOTSTRAP_AGAIN) {
    *why = give_up("the communicator was aborted");
    return false;
  }
  blink_bootstrap_reason reason{};
  blink_bootstrap_cause(handle_, &reason);
  *why = sentence(reason);
  return false;
}

std::string Bootstrap::give_up(const char* text) {
  blink_bootstrap_reason reason{BLINK_BOOTSTRAP_FAILED, rank_, getpid(), {}};
  std::snprintf(reason.text, sizeof reason.text, "%s", text);
  blink_bootstrap_fail(handle_, &reason);
  return sentence(reason);
}

std::string derived_key(const std::string& parent, const std::string& what) {
  return key_of_parts({"derived", parent, what});
}

std::string key_of(const void* bytes, std::size_t size) {
  return key_of_parts({"unique id", std::string(static_cast<const char*>(bytes), size)});
}

}  // namespace blink::shim
