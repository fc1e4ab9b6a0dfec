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
