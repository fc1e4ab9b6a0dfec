#include "ranges.h"

#include <map>
#include <mutex>

namespace cuda_double {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::uintptr_t, Range> by_base;
  std::map<int, std::size_t> allocated;
  std::uint64_t next_id = 1;
};

Table& table() {
  static Table& only = *new Table;
  return only;
}

Range* holder(std::uintptr_t address) {
  auto at = table().by_base.upper_bound(address);
  if (at == table().by_base.begin()) return nullptr;
  --at;
  Range& range = at->second;
  return address < range.base + range.bytes ? &range : nullptr;
}

}  // namespace

void add_range(Range range) {
  std::lock_guard<std::mutex> lock(table().mutex);
  range.id = table().next_id++;
  if (range.kind == Kind::device) table().allocated[range.device] += range.bytes;
  table().by_base[range.base] = range;
}

bool remove_range(std::uintptr_t base, Kind kind, Range* removed) {
  std::lock_guard<std::mutex> lock(table().mutex);
  const auto at = table().by_base.find(base);
  if (at == table().by_base.end() || at->second.kind != kind) return false;
  *removed = at->second;
  if (kind == Kind::device) table().allocated[removed->device] -= removed->bytes;
  table().by_base.erase(at);
  return true;
}

bool find_range(std::uintptr_t address, Range* found) {
  std::lock_guard<std::mutex> lock(table().mutex);
  const Range* range = holder(address);
  if (range) *found = *range;
  return range;
}

bool covers(std::uintptr_t address, std::size_t bytes, Range* found) {
  return find_range(address, found) && bytes <= found->base + found->bytes - address;
}

bool find_opened(std::uint64_t inode, Range* found) {
  std::lock_guard<std::mutex> lock(table().mutex);
  for (const auto& entry : table().by_base) {
    if (entry.second.kind == Kind::ipc && entry.second.inode == inode) return *found = entry.second, true;
  }
  return false;
}

int change_opened(std::uintptr_t base, int by) {
  std::lock_guard<std::mutex> lock(table().mutex);
  return table().by_base[base].opened += by;
}

std::size_t device_bytes(int device) {
  std::lock_guard<std::mutex> lock(table().mutex);
  return table().allocated[device];
}

}  // namespace cuda_double
