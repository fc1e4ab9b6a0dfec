#include "table.h"

namespace blink::shim {

std::shared_ptr<Member> Table::find(ncclComm_t comm) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = members_.find(comm);
  return at == members_.end() ? nullptr : at->second;
}

std::shared_ptr<Member> Table::insert(std::shared_ptr<Member> member) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<Member>& place = members_[member->real];
  place.swap(member);
  return member;
}

std::shared_ptr<Member> Table::take(ncclComm_t comm) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = members_.find(comm);
  if (at == members_.end()) return nullptr;
  std::shared_ptr<Member> member = std::move(at->second);
  members_.erase(at);
  return member;
}

Table& table() {
  static Table* const the = new Table;
  return *the;
}

}  // namespace blink::shim
