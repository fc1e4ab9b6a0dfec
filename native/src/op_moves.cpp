// How do the bytes of a firing get from all its sources to all its targets?
#include <algorithm>

#include "op.h"

using blink::Receive;
using blink::Role;

namespace {

// What stays in a second-level cache between two copies.
constexpr std::size_t kPieceBytes = 256 << 10;

}  // namespace

// From all sources to all targets.
int blink_op::move(const Role& role, const Chunk& chunk, std::int32_t own) {
  int code = BLINK_OK;
  if (writes_others_ && (code = comm_.start_writing()) != BLINK_OK) return code;
  if (!sources_.empty() && !targets_.empty()) {
    const bool alone = sources_.size() == 1 && role.divisor <= 1;
    if (taken_.empty()) {
      combine(role, sources_, targets_, chunk.bytes, own);
    } else {
      code = alone ? take(role, chunk) : take_and_combine(role, chunk, own);
    }
  }
  for (const Gift& gift : gifts_) {
    if (code != BLINK_OK || sources_.empty()) break;
    code = comm_.write_private(gift.peer, gift.into, sources_[0], chunk.bytes,
                               site(BLINK_WAITS_READER, role, gift.peer, chunk.index));
  }
  if (writes_others_) comm_.stop_writing();
  return code;
}

// The only source lies in its sender's own memory.
int blink_op::take(const Role& role, const Chunk& chunk) {
  const Receive& receive = *taken_[0].receive;
  auto* target = static_cast<unsigned char*>(targets_[0]);
  if (!past_caches_) {
    if (const int code = read_private(role, receive, chunk, 0, target, chunk.bytes)) return code;
  } else {
    // The system's copy goes through the caches, so a piece of it is taken first to where it stays in them.
    unsigned char* scratch = room(kPieceBytes);
    for (std::size_t from = 0; from < chunk.bytes; from += kPieceBytes) {
      const std::size_t bytes = std::min(kPieceBytes, chunk.bytes - from);
      if (const int code = read_private(role, receive, chunk, from, scratch, bytes)) return code;
      copy_result(target + from, scratch, bytes);
    }
  }
  for (std::size_t i = 1; i < targets_.size(); ++i) blink::copy_bytes(targets_[i], target, chunk.bytes);
  return BLINK_OK;
}

// Some of several sources lie in their senders' own memory: piece by piece they are taken to where they stay in a cache.
int blink_op::take_and_combine(const Role& role, const Chunk& chunk, std::int32_t own) {
  const std::size_t most = std::max<std::size_t>(1, kPieceBytes / taken_.size() / blink::kPage) * blink::kPage;
  const std::size_t piece = std::min(most, chunk.bytes);
  unsigned char* scratch = room(piece * taken_.size());
  for (std::size_t from = 0; from < chunk.bytes; from += piece) {
    const std::size_t bytes = std::min(piece, chunk.bytes - from);
    piece_sources_.clear();
    piece_targets_.clear();
    for (const void* source : sources_) {
      piece_sources_.push_back(source == nullptr ? nullptr : static_cast<const unsigned char*>(source) + from);
    }
    for (void* target : targets_) piece_targets_.push_back(static_cast<unsigned char*>(target) + from);
    for (std::size_t i = 0; i < taken_.size(); ++i) {
      unsigned char* into = scratch + i * piece;
      if (const int code = read_private(role, *taken_[i].receive, chunk, from, into, bytes)) return code;
      piece_sources_[taken_[i].source] = into;
    }
    combine(role, piece_sources_, piece_targets_, bytes, own);
  }
  return BLINK_OK;
}

// `bytes` of scratch from the beginning of a page on: copies to odd places are slow.
unsigned char* blink_op::room(std::size_t bytes) {
  scratch_.resize(std::max(scratch_.size(), bytes + blink::kPage));
  const std::size_t beyond = reinterpret_cast<std::uintptr_t>(scratch_.data()) % blink::kPage;
  return scratch_.data() + (beyond == 0 ? 0 : blink::kPage - beyond);
}

// `bytes` of a message from `from` on, out of its sender's own memory.
int blink_op::read_private(const Role& role, const Receive& receive, const Chunk& chunk, std::size_t from, void* into,
                           std::size_t bytes) {
  const int peer = static_cast<int>(receive.rank);
  const std::uint64_t at = blink_comm::private_address(
      lent(receive), receive.direct_offset + static_cast<std::int64_t>(chunk.bytes_before + from), bytes);
  if (at == 0) return not_lent(role, peer, chunk.index);
  return comm_.read_private(peer, into, at, bytes, site(BLINK_WAITS_MESSAGE, role, peer, chunk.index));
}

// A copy to wherever it has to be. Large results would only push other things out of the caches, unless they overwrite
// what this call has read.
void blink_op::copy_result(void* target, const void* source, std::size_t bytes) const {
  const auto* at = static_cast<const unsigned char*>(target);
  const bool was_read = input_ != nullptr && at < input_ + input_bytes_ && at + bytes > input_;
  const bool result = output_ != nullptr && at >= output_ && at < output_ + output_bytes_;
  if (past_caches_ && result && !was_read) {
    blink::copy_past_caches(target, source, bytes);
  } else {
    blink::copy_bytes(target, source, bytes);
  }
}

void blink_op::combine(const Role& role, const std::vector<const void*>& sources, const std::vector<void*>& targets,
                       std::size_t bytes, std::int32_t own) {
  const bool scaled = scaled_ && own >= 0;
  if (sources.size() == 1 && role.divisor <= 1 && !scaled) {
    for (void* target : targets) copy_result(target, sources[0], bytes);
    return;
  }
  blink::Finish finish;
  finish.own = scaled ? own : -1;
  finish.scale = scale_;
  finish.divisor = static_cast<std::uint32_t>(role.divisor);
  kernel_->combine(targets.data(), static_cast<int>(targets.size()), sources.data(), static_cast<int>(sources.size()),
                   bytes / kernel_->itemsize, finish);
}
