// How a rank runs its part of a Program: the walk, firings with large and with small messages, and the C functions.
#include "op.h"

#include <time.h>

#include <algorithm>

using blink::Block;
using blink::kPayloadBytes;
using blink::kNowhere;
using blink::Reader;
using blink::Receive;
using blink::Ring;
using blink::Role;

namespace {

// Where the results of a call are at least so large, copies of them bypass the caches: they would not stay there anyway.
constexpr std::int64_t kPastCachesBytes = 32 << 20;
// What stays in a second-level cache between two copies.
constexpr std::size_t kPieceBytes = 256 << 10;

double seconds_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

blink::Site blink_op::site(std::int32_t waits, const Role& role, int peer, std::int64_t chunk) const {
  return blink::Site{waits,
                     peer,
                     static_cast<std::int32_t>(role.channel),
                     static_cast<std::int32_t>(role.share),
                     static_cast<std::int32_t>(role.stage),
                     chunk};
}

int blink_op::run(const void* input, void* output, bool scaled, double scale, std::int64_t timeout_us) {
  input_ = static_cast<const unsigned char*>(input);
  output_ = static_cast<unsigned char*>(output);
  scaled_ = scaled;
  scale_ = scale;
  if ((input == nullptr && input_bytes_ > 0) || (output == nullptr && output_bytes_ > 0)) {
    return comm_.fail(BLINK_INVALID, blink::Site{}, -1, "a buffer that the call needs is missing");
  }
  if (misplaced(input) || misplaced(output)) {
    return comm_.fail(BLINK_INVALID, blink::Site{}, -1, "a buffer does not begin at a multiple of its elements' size");
  }
  const bool in_place = input_ != nullptr && output_ != nullptr && input_ < output_ + output_bytes_ &&
                        output_ < input_ + input_bytes_;
  my_input_ = !scaled && (!in_place || direct_in_place_) ? lend(input_, input_bytes_, lends_input_) : kNowhere;
  my_output_ = !in_place || push_in_place_ ? lend(output_, output_bytes_, lends_output_) : kNowhere;
  past_caches_ = std::max(input_bytes_, output_bytes_) >= kPastCachesBytes;
  int code = comm_.begin(blink::Call{signature_, what_, count_, my_input_, my_output_, input_bytes_, output_bytes_},
                         timeout_us);
  if (code != BLINK_OK) return code;
  std::fill(received_.begin(), received_.end(), 0);
  std::fill(sent_.begin(), sent_.end(), 0);
  code = walk();
  if (code == BLINK_OK) code = drain();
  if (code == BLINK_OK) {
    comm_.finish();
  } else {
    comm_.await_writers();
  }
  return code;
}

// What others are told of a buffer of this rank.
std::int64_t blink_op::lend(const void* buffer, std::int64_t bytes, bool privately) const {
  if (inline_messages_ || buffer == nullptr || bytes == 0) return kNowhere;
  const std::int64_t offset = comm_.heap_offset(buffer, bytes);
  return offset == kNowhere && privately ? blink::private_place(buffer) : offset;
}

int blink_op::walk() {
  for (std::int64_t tick = first_tick_; tick < last_tick_; ++tick) {
    for (const Role& role : roles_) {
      const std::int64_t chunk = tick - role.offset;
      if (chunk < 0 || chunk >= role.chunks) continue;
      const int code = inline_messages_ ? fire_inline(role) : fire(role, chunk);
      if (code != BLINK_OK) return code;
    }
  }
  return BLINK_OK;
}

// ---- large messages: rings, or the peers' own buffers -------------------------------------------------------------

bool blink_op::available(const Receive& r) const {
  const auto wanted = stamp(received_[static_cast<std::size_t>(r.queue)] + 1);
  return comm_.segment().line(comm_.bank(), static_cast<int>(r.rank), r.line).value.load(std::memory_order_acquire) >=
         wanted;
}

int blink_op::holder_of_slot(const Ring& ring, std::uint64_t sent) const {
  const auto slots = static_cast<std::uint64_t>(ring.slots);
  if (sent < slots || exports(ring)) return -1;
  const std::uint64_t wanted = stamp(sent + 1 - slots);
  for (std::int64_t i = 0; i < ring.readers; ++i) {
    const Reader& reader = readers_[static_cast<std::size_t>(ring.first_reader + i)];
    if (!pushes(ring, reader, 0) && comm_.segment().line(comm_.bank(), comm_.rank(), reader.ack_line)
                                   .value.load(std::memory_order_acquire) < wanted) {
      return static_cast<int>(reader.rank);
    }
  }
  return -1;
}

int blink_op::holder_of_slots(const Role& role) const {
  for (std::int64_t i = 0; i < role.sends; ++i) {
    const auto ring = static_cast<std::size_t>(sends_[static_cast<std::size_t>(role.first_send + i)]);
    const int holder = holder_of_slot(rings_[ring], sent_[ring]);
    if (holder >= 0) return holder;
  }
  return -1;
}

// Which way a message goes is decided alike on both of its ends, from the rows and from what both ranks lend.

bool blink_op::exports(const Ring& ring) const {
  if (ring.direct == blink::kDirectNo) return false;
  const std::int64_t mine = ring.direct == blink::kDirectInput ? my_input_ : my_output_;
  if (ring.halved != 0) {
    const Reader& reader = readers_[static_cast<std::size_t>(ring.first_reader)];
    return mine != kNowhere && place_of_output(reader) != kNowhere;
  }
  return mine != kNowhere;
}

bool blink_op::pushes(const Ring& ring, const Reader& reader, std::int64_t chunk) const {
  if (reader.push_offset == kNowhere) return false;
  return ring.halved != 0 ? chunk % 2 != 0 && exports(ring) : blink::is_shared(place_of_output(reader));
}

std::int64_t blink_op::place_of_output(const Reader& reader) const {
  return comm_.entry(static_cast<int>(reader.rank)).output.at.load(std::memory_order_relaxed);
}

const blink::Lent& blink_op::lent(const Receive& r) const {
  const blink::Entry& theirs = comm_.entry(static_cast<int>(r.rank));
  return r.direct == blink::kDirectInput ? theirs.input : theirs.output;
}

bool blink_op::halves(const Receive& r) const {
  return my_output_ != kNowhere && lent(r).at.load(std::memory_order_relaxed) != kNowhere;
}

bool blink_op::is_pushed(const Receive& r, std::int64_t chunk) const {
  return r.halved != 0 ? chunk % 2 != 0 && halves(r) : r.pushed != 0 && blink::is_shared(my_output_);
}

bool blink_op::reads_direct(const Receive& r, std::int64_t chunk) const {
  if (r.direct == blink::kDirectNo) return false;
  if (r.halved != 0) return chunk % 2 == 0 && halves(r);
  return lent(r).at.load(std::memory_order_relaxed) != kNowhere;
}

bool blink_op::reads_private(const Receive& r, std::int64_t chunk) const {
  return reads_direct(r, chunk) && blink::is_private(lent(r).at.load(std::memory_order_relaxed));
}

const void* blink_op::message(const Receive& r, const Chunk& chunk) const {
  const int peer = static_cast<int>(r.rank);
  if (reads_direct(r, chunk.index)) {
    return comm_.borrowed(peer, lent(r), r.direct_offset + static_cast<std::int64_t>(chunk.bytes_before), chunk.bytes);
  }
  const auto slot = static_cast<std::int64_t>(received_[static_cast<std::size_t>(r.queue)] % static_cast<std::uint64_t>(r.slots));
  return area_of(r.lodged, peer) + r.staging + slot * r.stride;
}

unsigned char* blink_op::area_of(std::int64_t lodged, int sender) const {
  return comm_.segment().staging(comm_.bank(), lodged == 0 ? sender : static_cast<int>(lodged - 1)) + shift();
}

// Readers whose buffers may be written must have begun this call, or they could still be reading them.
int blink_op::meet_readers(const Role& role) {
  for (std::int64_t i = 0; i < role.sends; ++i) {
    const Ring& ring = rings_[static_cast<std::size_t>(sends_[static_cast<std::size_t>(role.first_send + i)])];
    for (std::int64_t j = 0; j < ring.readers; ++j) {
      const Reader& reader = readers_[static_cast<std::size_t>(ring.first_reader + j)];
      if (reader.push_offset == kNowhere) continue;
      if (const int code = comm_.meet(static_cast<int>(reader.rank))) return code;
    }
  }
  return BLINK_OK;
}

int blink_op::fire(const Role& role, std::int64_t index) {
  const std::size_t item = kernel_->itemsize;
  const auto before = static_cast<std::size_t>(index * chunk_elements_);
  const auto elements = static_cast<std::size_t>(std::min(chunk_elements_, role.length - index * chunk_elements_));
  const Chunk chunk{index, before * item, elements, elements * item};
  if (const int code = meet_readers(role)) return code;
  for (std::int64_t i = 0; i < role.receives; ++i) {
    const Receive& receive = receives_[static_cast<std::size_t>(role.first_receive + i)];
    const int peer = static_cast<int>(receive.rank);
    if (const int code = comm_.meet(peer)) return code;
    if (available(receive)) continue;
    const int code = comm_.wait([&] { return available(receive) || (i > 0 && comm_.impatient()); },
                                site(BLINK_WAITS_MESSAGE, role, peer, index));
    if (code != BLINK_OK) return code;
    if (!available(receive)) return fire_stepwise(role, chunk);
  }
  if (!has_slots(role)) {
    const int code = comm_.wait([&] { return has_slots(role) || (role.receives > 0 && comm_.impatient()); },
                                site(BLINK_WAITS_SLOT, role, holder_of_slots(role), index));
    if (code != BLINK_OK) return code;
    if (!has_slots(role)) return fire_stepwise(role, chunk);
  }
  std::int32_t own = -1;
  sources_.clear();
  taken_.clear();
  for (std::int64_t i = 0; i <= role.receives; ++i) {
    if (i == role.turn && role.source != kNowhere) {
      own = static_cast<std::int32_t>(sources_.size());
      sources_.push_back(input_ + role.source + chunk.bytes_before);
    }
    if (i == role.receives) break;
    const Receive& receive = receives_[static_cast<std::size_t>(role.first_receive + i)];
    if (is_pushed(receive, index)) continue;
    if (reads_private(receive, index)) {
      taken_.push_back({sources_.size(), &receive});
      sources_.push_back(nullptr);
      continue;
    }
    sources_.push_back(message(receive, chunk));
    if (sources_.back() == nullptr) return not_lent(role, static_cast<int>(receive.rank), index);
  }
  if (const int code = collect_targets(role, chunk)) return code;
  if (const int code = move(role, chunk, own)) return code;
  settle(role, chunk, 0);
  return BLINK_OK;
}

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

// Everywhere the value of a firing has to be written. A value that lies there already is not copied onto itself.
int blink_op::collect_targets(const Role& role, const Chunk& chunk) {
  targets_.clear();
  gifts_.clear();
  writes_others_ = false;
  if (role.target != kNowhere) {
    void* place = output_ + role.target + chunk.bytes_before;
    if (sources_.size() != 1 || sources_[0] != place || role.divisor > 1 || scaled_) targets_.push_back(place);
  }
  for (std::int64_t i = 0; i < role.sends; ++i) {
    const auto number = static_cast<std::size_t>(sends_[static_cast<std::size_t>(role.first_send + i)]);
    const Ring& ring = rings_[number];
    bool staged = false;
    for (std::int64_t j = 0; j < ring.readers; ++j) {
      const Reader& reader = readers_[static_cast<std::size_t>(ring.first_reader + j)];
      if (pushes(ring, reader, chunk.index)) {
        if (!collect_pushed(reader, chunk)) return not_lent(role, static_cast<int>(reader.rank), chunk.index);
      } else {
        staged = true;
      }
    }
    if (staged && !exports(ring)) {
      const auto slot = static_cast<std::int64_t>(sent_[number] % static_cast<std::uint64_t>(ring.slots));
      targets_.push_back(area_of(ring.lodged, comm_.rank()) + ring.staging + slot * ring.stride);
    }
  }
  return BLINK_OK;
}

// Where a message has to be written in its reader's output; false if that is outside.
bool blink_op::collect_pushed(const Reader& reader, const Chunk& chunk) {
  const int peer = static_cast<int>(reader.rank);
  const blink::Lent& theirs = comm_.entry(peer).output;
  const std::int64_t at = reader.push_offset + static_cast<std::int64_t>(chunk.bytes_before);
  writes_others_ = true;
  if (blink::is_private(place_of_output(reader))) {
    gifts_.push_back({peer, blink_comm::private_address(theirs, at, chunk.bytes)});
    return gifts_.back().into != 0;
  }
  targets_.push_back(comm_.borrowed(peer, theirs, at, chunk.bytes));
  return targets_.back() != nullptr;
}

int blink_op::not_lent(const Role& role, int peer, std::int64_t chunk) {
  return comm_.fail(BLINK_INVALID, site(BLINK_WAITS_NOT, role, peer, chunk), peer,
                    "a message lies outside the buffer that the peer lends, or its shared memory is not mapped here");
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

// After a firing: messages are given back (those after the first `done`), the new one is announced.
void blink_op::settle(const Role& role, const Chunk& chunk, std::int64_t done) {
  for (std::int64_t i = 0; i < role.sends; ++i) {
    const auto number = static_cast<std::size_t>(sends_[static_cast<std::size_t>(role.first_send + i)]);
    comm_.segment().line(comm_.bank(), comm_.rank(), rings_[number].line)
        .value.store(stamp(++sent_[number]), std::memory_order_release);
  }
  for (std::int64_t i = done; i < role.receives; ++i) accept(receives_[static_cast<std::size_t>(role.first_receive + i)], chunk);
  wake_readers(role);
  if (role.sends == 0) std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::int64_t i = done; i < role.receives; ++i) {
    comm_.wake_unfenced(static_cast<int>(receives_[static_cast<std::size_t>(role.first_receive + i)].rank));
  }
}

// What was stored before is seen by readers that go to sleep now, or they are woken.
void blink_op::wake_readers(const Role& role) {
  if (role.sends == 0) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::int64_t i = 0; i < role.sends; ++i) {
    const Ring& ring = rings_[static_cast<std::size_t>(sends_[static_cast<std::size_t>(role.first_send + i)])];
    for (std::int64_t j = 0; j < ring.readers; ++j) {
      comm_.wake_unfenced(static_cast<int>(readers_[static_cast<std::size_t>(ring.first_reader + j)].rank));
    }
  }
}

void blink_op::accept(const Receive& r, const Chunk& chunk) {
  blink::Counters& stats = comm_.stats();
  ++stats.messages;
  stats.message_bytes += chunk.bytes;
  const bool pushed = is_pushed(r, chunk.index), direct = !pushed && reads_direct(r, chunk.index);
  (pushed ? stats.pushed_bytes : direct ? stats.direct_bytes : stats.staged_bytes) += chunk.bytes;
  if (pushed ? blink::is_private(my_output_) : direct && reads_private(r, chunk.index)) stats.crossed_bytes += chunk.bytes;
  const std::uint64_t count = ++received_[static_cast<std::size_t>(r.queue)];
  comm_.segment().line(comm_.bank(), static_cast<int>(r.rank), r.ack_line).value.store(stamp(count), std::memory_order_release);
}

// The firing exactly as the grammar has it: each message is combined and given back before the next is waited for,
// and all of them before a slot is. Programs may need that to go on; the fused way only needs less memory traffic.
int blink_op::fire_stepwise(const Role& role, const Chunk& chunk) {
  ++comm_.stats().stepwise;
  const std::size_t needed = chunk.elements * kernel_->accumulator_size;
  unsigned char* value = room(needed + chunk.bytes);
  unsigned char* taken = value + needed;
  // A lone operand passes through as it is, as in combine().
  const bool alone = role.receives + (role.source == kNowhere ? 0 : 1) == 1 && role.divisor <= 1 &&
                     !(scaled_ && role.source != kNowhere);
  bool empty = true;
  const auto add = [&](const void* source, bool scaled) {
    if (alone) {
      blink::copy_bytes(value, source, chunk.bytes);
      empty = false;
      return;
    }
    (empty ? kernel_->stepwise.load : kernel_->stepwise.step)(value, source, chunk.elements, scaled, scale_);
    empty = false;
  };
  for (std::int64_t i = 0; i <= role.receives; ++i) {
    if (i == role.turn && role.source != kNowhere) add(input_ + role.source + chunk.bytes_before, scaled_);
    if (i == role.receives) break;
    const Receive& receive = receives_[static_cast<std::size_t>(role.first_receive + i)];
    const int peer = static_cast<int>(receive.rank);
    if (const int code = comm_.meet(peer)) return code;
    if (const int code = comm_.wait([&] { return available(receive); }, site(BLINK_WAITS_MESSAGE, role, peer, chunk.index))) {
      return code;
    }
    if (reads_private(receive, chunk.index)) {
      if (const int code = read_private(role, receive, chunk, 0, taken, chunk.bytes)) return code;
      add(taken, false);
    } else if (!is_pushed(receive, chunk.index)) {
      const void* from = message(receive, chunk);
      if (from == nullptr) return not_lent(role, peer, chunk.index);
      add(from, false);
    }
    accept(receive, chunk);
    comm_.wake(peer);
  }
  if (const int code = comm_.wait([&] { return has_slots(role); }, site(BLINK_WAITS_SLOT, role, holder_of_slots(role), chunk.index))) return code;
  sources_.clear();
  if (const int code = collect_targets(role, chunk)) return code;
  if (writes_others_) {
    if (const int code = comm_.start_writing()) return code;
  }
  if (alone && !empty) {
    for (void* target : targets_) blink::copy_bytes(target, value, chunk.bytes);
  } else if (!empty && !targets_.empty()) {
    kernel_->stepwise.store(targets_.data(), static_cast<int>(targets_.size()), value, chunk.elements,
                            static_cast<std::uint32_t>(role.divisor));
  }
  if (writes_others_) comm_.stop_writing();
  settle(role, chunk, role.receives);
  return BLINK_OK;
}

// A buffer that peers read directly is the caller's again only when they are done with it.
int blink_op::drain() {
  for (std::size_t number = 0; number < rings_.size(); ++number) {
    const Ring& ring = rings_[number];
    if (ring.drain == 0 || sent_[number] == 0 || !exports(ring)) continue;
    for (std::int64_t j = 0; j < ring.readers; ++j) {
      const Reader& reader = readers_[static_cast<std::size_t>(ring.first_reader + j)];
      if (pushes(ring, reader, 0)) continue;
      const blink::Line& ack = comm_.segment().line(comm_.bank(), comm_.rank(), reader.ack_line);
      const std::uint64_t wanted = stamp(sent_[number]);
      const int code = comm_.wait([&] { return ack.value.load(std::memory_order_acquire) >= wanted; },
                                  blink::Site{BLINK_WAITS_READER, static_cast<std::int32_t>(reader.rank)});
      if (code != BLINK_OK) return code;
    }
  }
  return BLINK_OK;
}

// ---- small messages: the flag is inside -----------------------------------------------------------------------------

// Where block `number` of a message lies, as soon as it is there; nullptr with `code` set otherwise.
const void* blink_op::block_of(const Role& role, const Receive& r, std::size_t number, int& code) {
  const int peer = static_cast<int>(r.rank);
  const std::size_t total = static_cast<std::size_t>(role.length) * kernel_->itemsize;
  const Block& block =
      reinterpret_cast<const Block*>(comm_.segment().inline_area(comm_.bank(), peer) + shift() + r.staging)[number];
  const std::uint64_t wanted = flag();
  std::uint64_t seen = block.flag.load(std::memory_order_acquire);
  if (seen == wanted) return block.data(total);
  code = comm_.wait(
      [&] {
        seen = block.flag.load(std::memory_order_acquire);
        return seen >> blink::kCountBits == wanted >> blink::kCountBits;
      },
      site(BLINK_WAITS_MESSAGE, role, peer, static_cast<std::int64_t>(number)));
  if (code != BLINK_OK) return nullptr;
  if (seen == wanted) return block.data(total);
  // The same call by number, another one by content. The entries say so too, unless the hashes' low halves agree.
  code = comm_.meet(peer);
  if (code == BLINK_OK) code = comm_.fail(BLINK_MISMATCH, site(BLINK_WAITS_MESSAGE, role, peer, 0), peer, "");
  return nullptr;
}

int blink_op::fire_inline(const Role& role) {
  const std::size_t item = kernel_->itemsize;
  const std::size_t total = static_cast<std::size_t>(role.length) * item;
  int code = BLINK_OK;
  for (std::size_t from = 0, number = 0; from < total; from += kPayloadBytes, ++number) {
    const std::size_t bytes = std::min(kPayloadBytes, total - from);
    std::int32_t own = -1;
    sources_.clear();
    for (std::int64_t i = 0; i <= role.receives; ++i) {
      if (i == role.turn && role.source != kNowhere) {
        own = static_cast<std::int32_t>(sources_.size());
        sources_.push_back(input_ + role.source + from);
      }
      if (i == role.receives) break;
      const void* block = block_of(role, receives_[static_cast<std::size_t>(role.first_receive + i)], number, code);
      if (block == nullptr) return code;
      sources_.push_back(block);
    }
    targets_.clear();
    if (role.target != kNowhere) {
      void* place = output_ + role.target + from;
      if (sources_.size() != 1 || sources_[0] != place || role.divisor > 1 || scaled_) targets_.push_back(place);
    }
    for (std::int64_t i = 0; i < role.sends; ++i) targets_.push_back(my_block(role, i, number).data(total));
    if (!targets_.empty()) combine(role, sources_, targets_, bytes, own);
    for (std::int64_t i = 0; i < role.sends; ++i) {
      my_block(role, i, number).flag.store(flag(), std::memory_order_release);
    }
  }
  blink::Counters& stats = comm_.stats();
  for (std::int64_t i = 0; i < role.receives; ++i) {
    comm_.met_inline(static_cast<int>(receives_[static_cast<std::size_t>(role.first_receive + i)].rank));
    ++stats.messages;
    stats.message_bytes += total;
    stats.inline_bytes += total;
  }
  wake_readers(role);
  return BLINK_OK;
}

Block& blink_op::my_block(const Role& role, std::int64_t send, std::size_t number) const {
  const Ring& ring = rings_[static_cast<std::size_t>(sends_[static_cast<std::size_t>(role.first_send + send)])];
  return reinterpret_cast<Block*>(comm_.segment().inline_area(comm_.bank(), comm_.rank()) + shift() +
                                  ring.staging)[number];
}

// ---- the C face -----------------------------------------------------------------------------------------------------

extern "C" {

blink_op* blink_op_create(blink_comm* comm, const blink_tables* tables) { return blink_op::create(*comm, *tables); }

void blink_op_destroy(blink_op* op) { delete op; }

int blink_op_run(blink_op* op, const void* input, void* output, int scaled, double scale, int64_t timeout_us) {
  return op->run(input, output, scaled != 0, scale, timeout_us);
}

int blink_op_time(blink_op* op, blink_op* barrier, const void* input, void* output, int64_t iterations,
                  int64_t timeout_us, double* seconds) {
  std::int32_t here = 1, there = 0;
  if (barrier != nullptr && !barrier->fits(sizeof here)) return BLINK_INVALID;
  for (std::int64_t i = 0; i < iterations; ++i) {
    if (barrier != nullptr) {
      if (const int code = barrier->run(&here, &there, false, 1.0, timeout_us)) return code;
    }
    const double began = seconds_now();
    if (const int code = op->run(input, output, false, 1.0, timeout_us)) return code;
    seconds[i] = seconds_now() - began;
  }
  return BLINK_OK;
}

}  // extern "C"
