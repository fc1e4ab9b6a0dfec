#include "bootstrap.h"

#include <unistd.h>

#include "sha256.h"

namespace blink::shim {
namespace {

const std::string kReady = "+", kRefused = "-";  // the first character of a rank's contribution

// A sentence that names the rank.
std::string sentence(const blink_bootstrap_reason& reason) {
  const std::string text = reason.text;
  if (reason.status == BLINK_BOOTSTRAP_LOST) return "rank " + std::to_string(reason.rank) + " was lost: " + text;
  if (reason.status == BLINK_BOOTSTRAP_FAILED && reason.rank >= 0) {
    return "rank " + std::to_string(reason.rank) + " gives up: " + text;
  }
  return text;
}

// A hash of length-prefixed parts, so different lists of parts have different hashes.
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

bool Bootstrap::all_gather(bool good, const std::string& words, std::vector<std::string>* all, int* descriptor,
                           double grace_s, const Deadline& deadline, std::string* why) {
  const std::string message = (good ? kReady : kRefused) + words;
  const bool gives = descriptor != nullptr && *descriptor >= 0;
  int status = blink_bootstrap_all_gather(handle_, message.data(), message.size(), descriptor, gives ? 1 : 0, grace_s,
                                          deadline.left());
  if (gives) close(*descriptor);
  if (descriptor != nullptr) *descriptor = -1;
  while (status == BLINK_BOOTSTRAP_AGAIN && !deadline.called_off()) {
    status = blink_bootstrap_step(handle_, deadline.left_ms());
  }
  if (status != BLINK_BOOTSTRAP_OK) {
    blink_bootstrap_reason reason{BLINK_BOOTSTRAP_FAILED, rank_, getpid(), "the communicator was aborted"};
    if (status == BLINK_BOOTSTRAP_AGAIN) blink_bootstrap_fail(handle_, &reason);  // the other ranks get the reason, too
    blink_bootstrap_cause(handle_, &reason);
    *why = sentence(reason);
    return false;
  }
  all->clear();
  for (int rank = 0; rank < nranks_; ++rank) {
    const void* bytes = nullptr;
    const std::size_t size = blink_bootstrap_bytes(handle_, rank, &bytes);
    const std::string heard(static_cast<const char*>(bytes), size);
    if (heard.compare(0, 1, kReady) != 0) {
      *why = "rank " + std::to_string(rank) + ": " + heard.substr(1);
      return false;
    }
    all->push_back(heard.substr(1));
  }
  if (descriptor != nullptr) blink_bootstrap_descriptors(handle_, 0, descriptor, 1);
  return true;
}

std::string derived_key(const std::string& parent, const std::string& what) {
  return key_of_parts({"derived", parent, what});
}

std::string key_of(const void* bytes, std::size_t size) {
  return key_of_parts({"unique id", std::string(static_cast<const char*>(bytes), size)});
}

}  // namespace blink::shim
