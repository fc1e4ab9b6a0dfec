#include "op.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "clock.h"

using blink::Block;
using blink::kNowhere;
using blink::now_ns;
using blink::now_us;

namespace {

// A piece that stays in a second-level cache between two copies.
constexpr std::size_t kPieceBytes = 256 << 10;
constexpr std::size_t kLeastPartBytes = 64 << 10;  // of a pass, for another thread

// The time without progress after which an execution switches to steps, as in a wait.
constexpr std::int64_t kPatienceUs = 2'000;

}  // namespace

blink_op::blink_op(blink_comm& comm, std::unique_ptr<const blink::Tables> tables)
    : comm_(comm),
      owned_tables_(std::move(tables)),
      tables_(*owned_tables_),
      routes_(comm, tables_),
      received_(static_cast<std::size_t>(tables_.numbers.queue_count), 0),
      sent_(tables_.rings.size(), 0) {
  for (const blink_ring& ring : tables_.rings) drains_ = drains_ || ring.drain != 0;
  if (comm_.network() != nullptr) make_inboxes();
}

blink::Site blink_op::site(std::int32_t waits, const blink_role& role, int peer, std::int64_t chunk) const {
  return blink::Site{waits,
                     peer,
                     static_cast<std::int32_t>(role.channel),
                     static_cast<std::int32_t>(role.share),
                     static_cast<std::int32_t>(role.stage),
                     chunk};
}

int blink_op::run(const void* input, void* output, bool scaled, double scale, std::int64_t timeout_us) {
  const int code = start(input, output, scaled, scale, timeout_us);
  return code == BLINK_OK ? complete() : code;
}

int blink_op::start(const void* input, void* output, bool scaled, double scale, std::int64_t timeout_us) {
  running_ = this;
  if (const int code = check(input, output)) return code;
  if (choice_ != nullptr) {
    const bool in_place = is_in_place(static_cast<const unsigned char*>(input), static_cast<unsigned char*>(output));
    const int variant = choice_->begin({in_place, is_shared(input) || is_shared(output)});
    if (variant != 0) running_ = variants_[static_cast<std::size_t>(variant) - 1].get();
  }
  return running_->prepare(input, output, scaled, scale, timeout_us);
}

// Checked before the call changes any state: the caller may retry after a refusal.
int blink_op::check(const void* input, const void* output) {
  const blink_tables& t = tables_.numbers;
  if ((input == nullptr && t.input_bytes > 0) || (output == nullptr && t.output_bytes > 0)) {
    return comm_.refuse("the call needs an input or output buffer that is null");
  }
  const bool misplaced = is_misplaced(input) || is_misplaced(output);
  return misplaced ? comm_.refuse("a buffer's address is not a multiple of the element size") : BLINK_OK;
}

int blink_op::finish() {
  if (comm_.recorder().on()) comm_.recorder().go_on();
  return complete();
}

int blink_op::complete() {
  const int code = running_->go_on();
  if (code == BLINK_OK && choice_ != nullptr) choice_->end();
  return code;
}

int blink_op::step(std::int64_t patience_us) {
  blink_op& op = *running_;
  const Position before = op.at_;
  comm_.start_polling(stalled_us_ != 0 && now_us() - stalled_us_ > kPatienceUs);
  int code = finish();
  for (const std::int64_t until = now_us() + patience_us; code == BLINK_AGAIN && now_us() < until; code = finish()) {
    if (!comm_.is_roomy()) sched_yield();
  }
  comm_.stop_polling();
  if (code != BLINK_AGAIN || !(op.at_ == before)) stalled_us_ = 0;
  else if (stalled_us_ == 0) stalled_us_ = now_us();
  return code;
}

bool blink_op::only_receives() const {
  const blink_op& op = *running_;
  if (!op.at_.begun || op.tables_.numbers.inline_messages == 0) return false;
  for (std::size_t number = 0; number < op.tables_.roles.size(); ++number) {
    const blink_role& role = op.tables_.roles[number];
    const std::int64_t last = role.offset + role.chunks - 1;
    const bool done = last < op.at_.tick || (last == op.at_.tick && number < op.at_.role);
    if (!done && role.sends != 0) return false;
  }
  return true;
}

void blink_op::add_variant(std::unique_ptr<blink_op> variant) {
  variants_.push_back(std::move(variant));
  std::uint64_t key = tables_.numbers.signature;
  for (const auto& other : variants_) key = key * 0x9e3779b97f4a7c15ull + other->tables_.numbers.signature;
  choice_ = std::make_unique<blink::VariantChoice>(comm_, key, static_cast<int>(variants_.size()) + 1);
}

int blink_op::prepare(const void* input, void* output, bool scaled, double scale, std::int64_t timeout_us) {
  const blink_tables& t = tables_.numbers;
  input_ = static_cast<const unsigned char*>(input);
  output_ = static_cast<unsigned char*>(output);
  scaled_ = scaled;
  scale_ = scale;
  in_place_ = is_in_place(input_, output_);
  const bool lends_input = !scaled && (!in_place_ || t.direct_read_in_place);
  const bool lends_output = !in_place_ || t.direct_write_in_place;
  call_ = {t.signature, t.what, t.count, kNowhere, kNowhere, t.input_bytes, t.output_bytes};
  if (lends_input) call_.input = routes_.place_to_lend(input_, t.input_bytes, tables_.lends_input);
  if (lends_output) call_.output = routes_.place_to_lend(output_, t.output_bytes, tables_.lends_output);
  routes_.begin(call_.input, call_.output);
  past_caches_ = blink::are_past_caches(std::max(t.input_bytes, t.output_bytes) * comm_.size());
  std::fill(received_.begin(), received_.end(), 0);
  std::fill(sent_.begin(), sent_.end(), 0);
  at_ = Position{};
  at_.tick = tables_.first_tick;
  comm_.start_clock(timeout_us);
  if (t.inline_messages == 0) comm_.populate();
  if (comm_.recorder().on()) comm_.recorder().begin_call();
  return BLINK_OK;
}

int blink_op::go_on() {
  blink::Recorder& recorder = comm_.recorder();
  const int code = run_from_position();
  if (recorder.on() && code != BLINK_AGAIN) {
    recorder.call(comm_.sequence(), call_.signature, call_.count, code, code == BLINK_OK && !drains_);
  }
  return code;
}

int blink_op::run_from_position() {
  if (!at_.begun) {
    if (const int code = comm_.begin(call_)) return code;
    at_.begun = true;
    if (comm_.network() != nullptr) begin_messages();
  }
  int code = run_ticks();
  if (code == BLINK_OK) code = drain();
  if (code == BLINK_OK) {
    comm_.finish();
  } else if (code != BLINK_AGAIN) {
    comm_.await_writers();
    if (comm_.network() != nullptr) comm_.network()->shut(false);
  }
  return code;
}

int blink_op::run_ticks() {
  const std::size_t roles = tables_.roles.size();
  for (std::int64_t tick = at_.tick; tick < tables_.last_tick; ++tick, at_.role = 0) {
    for (std::size_t number = at_.role; number < roles; ++number) {
      const blink_role& role = tables_.roles[number];
      const std::int64_t chunk = tick - role.offset;
      if (chunk < 0 || chunk >= role.chunks) continue;
      const int code = tables_.numbers.inline_messages != 0 ? execute_inline(role) : execute(role, chunk);
      if (code == BLINK_OK) {
        if (comm_.recorder().on()) record(number, chunk);
        continue;
      }
      at_.tick = tick;
      at_.role = number;
      return code;
    }
  }
  at_.tick = tables_.last_tick;
  return BLINK_OK;
}

void blink_op::record(std::size_t number, std::int64_t chunk) {
  const std::int64_t most = tables_.roles[number].chunk_elements, length = tables_.roles[number].length;
  const auto item = static_cast<std::int64_t>(tables_.kernel->itemsize);
  if (!comm_.recorder().keeps(std::min(most, length) * item)) return;
  comm_.recorder().execution(comm_.sequence(), number, chunk, std::min(most, length - chunk * most) * item);
}

// A buffer that peers read directly belongs to the caller again only after their last read.
int blink_op::drain() {
  for (std::size_t number = 0; number < tables_.rings.size(); ++number) {
    const blink_ring& ring = tables_.rings[number];
    if (ring.drain == 0 || sent_[number] == 0 || !routes_.exports(ring)) continue;
    for (const blink_reader& reader : tables_.readers_of(ring)) {
      if (routes_.writes(ring, reader, 0) || comm_.is_remote(static_cast<int>(reader.rank))) continue;
      const blink::Line& ack = line(comm_.rank(), reader.ack_line);
      const std::uint64_t wanted = stamp(sent_[number]);
      const int code = comm_.wait([&] { return ack.value.load(std::memory_order_acquire) >= wanted; },
                                  blink::Site{BLINK_WAITS_READER, static_cast<std::int32_t>(reader.rank)});
      if (code != BLINK_OK) return code;
    }
  }
  blink::Network* network = comm_.network();
  if (network == nullptr) return BLINK_OK;
  const int code = comm_.wait([&] { return network->settled(); }, blink::Site{BLINK_WAITS_READER});
  if (code == BLINK_OK) network->end();
  return code == BLINK_OK ? comm_.check_network(-1) : code;
}

// ---- between hosts

void blink_op::make_inboxes() {
  inbox_of_.assign(static_cast<std::size_t>(tables_.numbers.queue_count), kNone);
  posted_.resize(tables_.readers.size());
  std::vector<std::size_t> messages(inbox_of_.size(), 0);
  for (const blink_role& role : tables_.roles) {
    for (const blink_receive& receive : tables_.receives_of(role)) {
      messages[static_cast<std::size_t>(receive.queue)] += static_cast<std::size_t>(role.chunks);
    }
  }
  std::vector<int> takers(inbox_of_.size(), 0);
  for (std::size_t number = 0; number < tables_.roles.size(); ++number) {
    const blink_role& role = tables_.roles[number];
    for (const blink_receive& receive : tables_.receives_of(role)) {
      const auto queue = static_cast<std::size_t>(receive.queue);
      if (!comm_.is_remote(static_cast<int>(receive.rank))) continue;
      if (++takers[queue] > 1) {
        keeper_of_[static_cast<std::size_t>(inbox_of_[queue])] = kNone;
        continue;
      }
      inbox_of_[queue] = static_cast<std::int64_t>(inboxes_.all.size());
      inboxes_.all.emplace_back(static_cast<std::int32_t>(receive.rank), static_cast<std::uint32_t>(receive.ack_line),
                                messages[queue], static_cast<std::size_t>(receive.slots),
                                static_cast<std::size_t>(receive.stride));
      inboxes_.places[inboxes_.all.back().name()] = inboxes_.all.size() - 1;
      const bool keeps = role.receives == 1 && role.source == kNowhere && role.target != kNowhere && role.divisor <= 1;
      keeper_of_.push_back(keeps ? static_cast<std::int64_t>(number) : kNone);
    }
  }
}

// Messages may arrive in this rank's output early, under the same condition as direct writes by ranks of its host.
void blink_op::begin_messages() {
  const blink_tables& t = tables_.numbers;
  const std::size_t item = tables_.kernel->itemsize;
  for (std::size_t i = 0; i < inboxes_.all.size(); ++i) {
    const blink_role* keeper = keeper_of_[i] == kNone ? nullptr : &tables_.roles[static_cast<std::size_t>(keeper_of_[i])];
    const bool stays = keeper != nullptr && tables_.receive(*keeper, 0).direct_write != 0 && t.direct_write_in_place != 0;
    if (keeper == nullptr || (in_place_ && !stays)) {
      inboxes_.all[i].begin(nullptr, 0, 0);
      continue;
    }
    const blink_role& role = *keeper;
    inboxes_.all[i].begin(output_ + role.target, static_cast<std::size_t>(role.chunk_elements) * item,
                          static_cast<std::size_t>(role.length) * item);
  }
  for (auto& sent : posted_) sent.clear();
  comm_.network()->begin({comm_.sequence(), t.signature, t.what, t.count, 0, 0, comm_.rank(), 0}, inboxes_);
}

bool blink_op::has_remote_readers(const blink_ring& ring) const {
  if (posted_.empty()) return false;
  const auto readers = tables_.readers_of(ring);
  return std::any_of(readers.begin(), readers.end(),
                     [this](const blink_reader& reader) { return comm_.is_remote(static_cast<int>(reader.rank)); });
}

// A kept value stays in the output until the end of the call, and so does the input, except in place.
const unsigned char* blink_op::kept_message(const blink_role& role, const blink_ring& ring, const Chunk& chunk) const {
  if (role.target != kNowhere) return output_ + role.target + chunk.bytes_before;
  const bool is_input = role.receives == 0 && role.source != kNowhere && role.divisor <= 1 && !scaled_;
  const bool stays = ring.direct_read == BLINK_READ_INPUT && tables_.numbers.direct_read_in_place != 0;
  if (!is_input || (in_place_ && !stays)) return nullptr;
  return input_ + role.source + chunk.bytes_before;
}

void blink_op::send(const blink_role& role, const blink_ring& ring, const Chunk& chunk, std::uint64_t number) {
  const unsigned char* message = kept_message(role, ring, chunk);
  if (message == nullptr) message = routes_.slot(ring, number);
  for (const blink_reader& reader : tables_.readers_of(ring)) {
    if (!comm_.is_remote(static_cast<int>(reader.rank))) continue;
    posted_[static_cast<std::size_t>(&reader - tables_.readers.data())].push_back(
        &comm_.network()->send(static_cast<int>(reader.rank), static_cast<std::size_t>(reader.rail),
                               static_cast<std::uint32_t>(reader.ack_line), static_cast<std::uint32_t>(number), message,
                               chunk.bytes));
  }
}

// ---- large messages: rings, or the ranks' own buffers

bool blink_op::available(const blink_receive& r) {
  if (const blink::Inbox* remote = inbox(r)) return remote->has(received_[static_cast<std::size_t>(r.queue)]);
  const std::uint64_t wanted = stamp(received_[static_cast<std::size_t>(r.queue)] + 1);
  return line(r.rank, r.line).value.load(std::memory_order_acquire) >= wanted;
}

int blink_op::holder_of_slot(const blink_ring& ring, std::uint64_t sent) const {
  const auto slots = static_cast<std::uint64_t>(ring.slots);
  if (sent < slots) return -1;
  const bool exports = routes_.exports(ring);
  const std::uint64_t wanted = stamp(sent + 1 - slots);
  for (const blink_reader& reader : tables_.readers_of(ring)) {
    if (comm_.is_remote(static_cast<int>(reader.rank))) {
      if (!posted_[static_cast<std::size_t>(&reader - tables_.readers.data())][sent - slots]->done) {
        return static_cast<int>(reader.rank);
      }
      continue;
    }
    if (!exports && !routes_.writes(ring, reader, 0) &&
        line(comm_.rank(), reader.ack_line).value.load(std::memory_order_acquire) < wanted) {
      return static_cast<int>(reader.rank);
    }
  }
  return -1;
}

int blink_op::holder_of_slots(const blink_role& role) const {
  for (const std::int64_t ring : tables_.sends_of(role)) {
    const int holder = holder_of_slot(tables_.ring(ring), sent_[static_cast<std::size_t>(ring)]);
    if (holder >= 0) return holder;
  }
  return -1;
}

// A reader whose buffer will be written must have begun this call; otherwise it could still be reading that buffer.
int blink_op::await_readers_entry(const blink_role& role) {
  for (const std::int64_t ring : tables_.sends_of(role)) {
    for (const blink_reader& reader : tables_.readers_of(tables_.ring(ring))) {
      if (reader.write_offset == kNowhere) continue;
      if (const int code = comm_.await_entry(static_cast<int>(reader.rank))) return code;
    }
  }
  return BLINK_OK;
}

int blink_op::execute(const blink_role& role, std::int64_t index) {
  const std::size_t item = tables_.kernel->itemsize;
  const std::int64_t before = index * role.chunk_elements;
  const auto elements = static_cast<std::size_t>(std::min(role.chunk_elements, role.length - before));
  const Chunk chunk{index, static_cast<std::size_t>(before) * item, elements, elements * item};
  if (at_.stepwise) return execute_stepwise(role, chunk);
  if (const int code = await_readers_entry(role)) return code;
  for (std::int64_t i = 0; i < role.receives; ++i) {
    const blink_receive& receive = tables_.receive(role, i);
    const int peer = static_cast<int>(receive.rank);
    if (const int code = comm_.await_entry(peer)) return code;
    if (available(receive)) continue;
    const int code = comm_.wait([&] { return available(receive) || (i > 0 && comm_.impatient()); },
                                site(BLINK_WAITS_MESSAGE, role, peer, index));
    if (code != BLINK_OK) return code;
    if (!available(receive)) return execute_stepwise(role, chunk);
  }
  if (!has_slots(role)) {
    const int code = comm_.wait([&] { return has_slots(role) || (role.receives > 0 && comm_.impatient()); },
                                site(BLINK_WAITS_SLOT, role, holder_of_slots(role), index));
    if (code != BLINK_OK) return code;
    if (!has_slots(role)) return execute_stepwise(role, chunk);
  }
  std::int32_t own = -1;
  if (const int code = collect_sources(role, chunk, own)) return code;
  if (const int code = collect_targets(role, chunk)) return code;
  if (const int code = move(role, chunk, own)) return code;
  publish(role, chunk, 0);
  return BLINK_OK;
}

// After an execution: releases messages (those after the first `acknowledged`) and announces the new one.
void blink_op::publish(const blink_role& role, const Chunk& chunk, std::int64_t acknowledged) {
  for (const std::int64_t ring : tables_.sends_of(role)) {
    const std::uint64_t count = ++sent_[static_cast<std::size_t>(ring)];
    line(comm_.rank(), tables_.ring(ring).line).value.store(stamp(count), std::memory_order_release);
    if (has_remote_readers(tables_.ring(ring))) send(role, tables_.ring(ring), chunk, count - 1);
  }
  for (std::int64_t i = acknowledged; i < role.receives; ++i) acknowledge(tables_.receive(role, i), chunk);
  wake_readers(role);
  if (role.sends == 0) std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::int64_t i = acknowledged; i < role.receives; ++i) {
    comm_.wake_unfenced(static_cast<int>(tables_.receive(role, i).rank));
  }
}

// Readers that go to sleep from now on see the preceding stores; sleeping ones are woken.
void blink_op::wake_readers(const blink_role& role) {
  if (role.sends == 0) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const std::int64_t ring : tables_.sends_of(role)) {
    for (const blink_reader& reader : tables_.readers_of(tables_.ring(ring))) {
      comm_.wake_unfenced(static_cast<int>(reader.rank));
    }
  }
}

void blink_op::acknowledge(const blink_receive& r, const Chunk& chunk) {
  blink::Counters& stats = comm_.stats();
  ++stats.messages;
  stats.message_bytes += chunk.bytes;
  if (blink::Inbox* remote = inbox(r)) {
    stats.network_bytes += chunk.bytes;
    ++received_[static_cast<std::size_t>(r.queue)];
    remote->take();
    comm_.network()->go_on();
    return;
  }
  const bool written = routes_.is_written(r, chunk.index), read = !written && routes_.reads_direct(r, chunk.index);
  (written ? stats.direct_write_bytes : read ? stats.direct_read_bytes : stats.staged_bytes) += chunk.bytes;
  if (written ? routes_.output_is_private() : read && routes_.reads_private(r, chunk.index)) {
    stats.crossed_bytes += chunk.bytes;
  }
  const std::uint64_t count = ++received_[static_cast<std::size_t>(r.queue)];
  line(r.rank, r.ack_line).value.store(stamp(count), std::memory_order_release);
}

// An execution exactly as the Program defines it: each message is reduced and released before the next wait, and all of
// them before the wait for a slot. Some Programs progress only in this way; the fused way only saves memory traffic.
int blink_op::execute_stepwise(const blink_role& role, const Chunk& chunk) {
  if (!at_.stepwise) {
    ++comm_.stats().stepwise;
    at_.operand = 0;
    at_.stepwise = at_.empty = true;
    at_.own_added = false;
  }
  const blink::Stepwise& steps = tables_.kernel->stepwise;
  const std::size_t needed = chunk.elements * tables_.kernel->accumulator_size;
  unsigned char* value = scratch(passes_[0].scratch, needed + chunk.bytes);
  unsigned char* fetched = value + needed;
  // A single operand keeps its bits, as in combine().
  const bool contributes = role.source != kNowhere;
  const bool alone = role.receives + (contributes ? 1 : 0) == 1 && role.divisor <= 1 && !(scaled_ && contributes);
  bool& empty = at_.empty;
  const auto add = [&](const void* source, bool scaled) {
    if (alone) {
      blink::copy_bytes(value, source, chunk.bytes);
    } else {
      (empty ? steps.load : steps.step)(value, source, chunk.elements, scaled, scale_);
    }
    empty = false;
  };
  for (std::int64_t& i = at_.operand; i <= role.receives; ++i) {
    if (i == role.own_operand_index && contributes && !at_.own_added) {
      add(input_ + role.source + chunk.bytes_before, scaled_);
      at_.own_added = true;
    }
    if (i == role.receives) break;
    const blink_receive& receive = tables_.receive(role, i);
    const int peer = static_cast<int>(receive.rank);
    if (const int code = comm_.await_entry(peer)) return code;
    const blink::Site at = site(BLINK_WAITS_MESSAGE, role, peer, chunk.index);
    if (const int code = comm_.wait([&] { return available(receive); }, at)) return code;
    if (const blink::Inbox* remote = inbox(receive)) {
      add(remote->message(received_[static_cast<std::size_t>(receive.queue)]), false);
    } else if (routes_.reads_private(receive, chunk.index)) {
      const PrivateSource source = private_source(receive, chunk);
      if (source.from == 0) return not_lent(role, peer, chunk.index);
      if (!read_private(source, fetched, 0, chunk.bytes)) return comm_.private_failure(peer, at);
      add(fetched, false);
    } else if (!routes_.is_written(receive, chunk.index)) {
      const void* from = routes_.message(receive, chunk, received_[static_cast<std::size_t>(receive.queue)]);
      if (from == nullptr) return not_lent(role, peer, chunk.index);
      add(from, false);
    }
    acknowledge(receive, chunk);
    comm_.wake(peer);
  }
  const blink::Site at = site(BLINK_WAITS_SLOT, role, holder_of_slots(role), chunk.index);
  if (const int code = comm_.wait([&] { return has_slots(role); }, at)) return code;
  sources_.clear();
  if (const int code = collect_targets(role, chunk)) return code;
  if (writes_others_) {
    if (const int code = comm_.start_writing()) return code;
  }
  if (alone && !empty) {
    for (void* target : targets_) blink::copy_bytes(target, value, chunk.bytes);
  } else if (!empty && !targets_.empty()) {
    steps.store(targets_.data(), static_cast<int>(targets_.size()), value, chunk.elements,
                static_cast<std::uint32_t>(role.divisor));
  }
  if (writes_others_) comm_.stop_writing();
  at_.stepwise = false;
  publish(role, chunk, role.receives);
  return BLINK_OK;
}

// ---- sources and targets

// Collects the operands in order; `own`: the index of the rank's own data, or -1.
int blink_op::collect_sources(const blink_role& role, const Chunk& chunk, std::int32_t& own) {
  sources_.clear();
  private_sources_.clear();
  for (std::int64_t i = 0; i <= role.receives; ++i) {
    if (i == role.own_operand_index && role.source != kNowhere) {
      own = static_cast<std::int32_t>(sources_.size());
      sources_.push_back(input_ + role.source + chunk.bytes_before);
    }
    if (i == role.receives) break;
    const blink_receive& receive = tables_.receive(role, i);
    if (const blink::Inbox* remote = inbox(receive)) {
      sources_.push_back(remote->message(received_[static_cast<std::size_t>(receive.queue)]));
      continue;
    }
    if (routes_.is_written(receive, chunk.index)) continue;
    if (routes_.reads_private(receive, chunk.index)) {
      private_sources_.push_back(private_source(receive, chunk));
      if (private_sources_.back().from == 0) return not_lent(role, static_cast<int>(receive.rank), chunk.index);
      sources_.push_back(nullptr);
      continue;
    }
    sources_.push_back(routes_.message(receive, chunk, received_[static_cast<std::size_t>(receive.queue)]));
    if (sources_.back() == nullptr) return not_lent(role, static_cast<int>(receive.rank), chunk.index);
  }
  return BLINK_OK;
}

// A message in its sender's own memory, as the next source; `from` is 0 if it is outside the sender's buffer.
blink_op::PrivateSource blink_op::private_source(const blink_receive& receive, const Chunk& chunk) const {
  const std::int64_t offset = receive.direct_offset + static_cast<std::int64_t>(chunk.bytes_before);
  const std::uint64_t at = blink_comm::private_address(routes_.lent(receive), offset, chunk.bytes);
  return {sources_.size(), static_cast<int>(receive.rank), at};
}

// Collects all addresses to which the result of an execution is written.
int blink_op::collect_targets(const blink_role& role, const Chunk& chunk) {
  private_targets_.clear();
  writes_others_ = false;
  collect_own_target(role, chunk.bytes_before);
  for (const std::int64_t number : tables_.sends_of(role)) {
    const blink_ring& ring = tables_.ring(number);
    bool staged = false, sends_slot = false;
    for (const blink_reader& reader : tables_.readers_of(ring)) {
      if (comm_.is_remote(static_cast<int>(reader.rank))) {
        sends_slot = sends_slot || kept_message(role, ring, chunk) == nullptr;
      } else if (!routes_.writes(ring, reader, chunk.index)) {
        staged = true;
      } else if (!collect_write(reader, chunk)) {
        return not_lent(role, static_cast<int>(reader.rank), chunk.index);
      }
    }
    if (sends_slot || (staged && !routes_.exports(ring))) targets_.push_back(routes_.slot(ring, sent_[static_cast<std::size_t>(number)]));
  }
  return BLINK_OK;
}

// Collects the first target. A value that is at its target already is not copied onto itself.
void blink_op::collect_own_target(const blink_role& role, std::size_t bytes_before) {
  targets_.clear();
  if (role.target == kNowhere) return;
  void* place = output_ + role.target + bytes_before;
  if (sources_.size() != 1 || sources_[0] != place || role.divisor > 1 || scaled_) targets_.push_back(place);
}

// Finds the address of a message in its reader's output; false if it is outside.
bool blink_op::collect_write(const blink_reader& reader, const Chunk& chunk) {
  const int peer = static_cast<int>(reader.rank);
  const blink::Lent& theirs = comm_.entry(peer).output;
  const std::int64_t at = reader.write_offset + static_cast<std::int64_t>(chunk.bytes_before);
  writes_others_ = true;
  if (blink::is_private(routes_.place_of_output(reader))) {
    private_targets_.push_back({peer, blink_comm::private_address(theirs, at, chunk.bytes)});
    return private_targets_.back().into != 0;
  }
  targets_.push_back(comm_.borrowed(peer, theirs, at, chunk.bytes));
  return targets_.back() != nullptr;
}

int blink_op::not_lent(const blink_role& role, int peer, std::int64_t chunk) {
  return comm_.fail(BLINK_INVALID, site(BLINK_WAITS_NOT, role, peer, chunk), peer,
                    "a message lies outside the peer's buffer, or this process has not mapped that buffer; this is a bug "
                    "in Blink: please report it");
}

// Moves the data from all sources to all targets. Threads of the rank share a large chunk.
int blink_op::move(const blink_role& role, const Chunk& chunk, std::int32_t own) {
  if (sources_.empty()) return BLINK_OK;
  if (writes_others_) {
    if (const int code = comm_.start_writing()) return code;
  }
  std::atomic<int> denied{-1};
  const auto move_part = [&](int thread, std::size_t from, std::size_t bytes) {
    const Pass pass{role, chunk, own, from, bytes};
    const int peer = targets_.empty() ? -1 : read_and_combine(pass, passes_[static_cast<std::size_t>(thread)]);
    const int refusing = peer >= 0 ? peer : write_private(pass);
    if (refusing >= 0) denied.store(refusing, std::memory_order_relaxed);
  };
  divide(chunk.bytes, move_part);
  if (writes_others_) comm_.stop_writing();
  const int peer = denied.load(std::memory_order_relaxed);
  return peer < 0 ? BLINK_OK : comm_.private_failure(peer, site(BLINK_WAITS_MESSAGE, role, peer, chunk.index));
}

// Calls move_part(thread, from, bytes) for parts of `bytes`, in all threads if each gets a worthwhile part. Parts begin at
// pages, so no element is cut.
template <class MovePart>
void blink_op::divide(std::size_t bytes, MovePart move_part) {
  blink::Team& team = comm_.team();
  const std::size_t parts = std::min(static_cast<std::size_t>(team.threads()), bytes / kLeastPartBytes);
  passes_.resize(static_cast<std::size_t>(team.threads()));
  if (parts <= 1) {
    move_part(0, 0, bytes);
    return;
  }
  const std::size_t most = ((bytes + parts - 1) / parts + blink::kPage - 1) / blink::kPage * blink::kPage;
  comm_.stats().parts += (bytes + most - 1) / most;
  team.run(static_cast<int>((bytes + most - 1) / most), [&](int thread, int part) {
    const std::size_t from = static_cast<std::size_t>(part) * most;
    move_part(thread, from, std::min(most, bytes - from));
  });
}

// The part of all targets. Returns a peer whose memory the system does not let this rank read, or -1.
int blink_op::read_and_combine(const Pass& pass, PassMemory& memory) const {
  if (private_sources_.size() == 1 && sources_.size() == 1 && pass.role.divisor <= 1) return copy_private(pass, memory);
  // Pieces of data in other ranks' own memory are first copied to scratch memory that stays in a cache.
  const std::size_t sources = private_sources_.size();
  const std::size_t most =
      sources == 0 ? pass.bytes : std::max<std::size_t>(1, kPieceBytes / sources / blink::kPage) * blink::kPage;
  const std::size_t piece = std::min(most, pass.bytes);
  unsigned char* pieces = sources == 0 ? nullptr : scratch(memory.scratch, piece * sources);
  for (std::size_t done = 0; done < pass.bytes; done += piece) {
    const std::size_t from = pass.from + done, bytes = std::min(piece, pass.bytes - done);
    memory.sources.clear();
    memory.targets.clear();
    for (const void* source : sources_) {
      memory.sources.push_back(source == nullptr ? nullptr : static_cast<const unsigned char*>(source) + from);
    }
    for (void* target : targets_) memory.targets.push_back(static_cast<unsigned char*>(target) + from);
    for (std::size_t i = 0; i < sources; ++i) {
      unsigned char* into = pieces + i * piece;
      if (!read_private(private_sources_[i], into, from, bytes)) return private_sources_[i].peer;
      memory.sources[private_sources_[i].source] = into;
    }
    combine(pass.role, memory.sources, memory.targets, bytes, pass.own);
  }
  return -1;
}

// The same where the only source is in its sender's own memory.
int blink_op::copy_private(const Pass& pass, PassMemory& memory) const {
  const PrivateSource& source = private_sources_[0];
  auto* target = static_cast<unsigned char*>(targets_[0]) + pass.from;
  if (!past_caches_) {
    if (!read_private(source, target, pass.from, pass.bytes)) return source.peer;
  } else {
    // The system's copy goes through the caches, so each piece is first copied to scratch memory that stays in them.
    unsigned char* piece = scratch(memory.scratch, kPieceBytes);
    for (std::size_t done = 0; done < pass.bytes; done += kPieceBytes) {
      const std::size_t bytes = std::min(kPieceBytes, pass.bytes - done);
      if (!read_private(source, piece, pass.from + done, bytes)) return source.peer;
      copy_result(target + done, piece, bytes);
    }
  }
  for (std::size_t i = 1; i < targets_.size(); ++i) {
    blink::copy_bytes(static_cast<unsigned char*>(targets_[i]) + pass.from, target, pass.bytes);
  }
  return -1;
}

bool blink_op::read_private(const PrivateSource& source, void* into, std::size_t from, std::size_t bytes) const {
  return comm_.read_private(source.peer, into, source.from + from, bytes);
}

// Writes the part into other ranks' own memory. Returns a peer for which the system does not allow this, or -1.
int blink_op::write_private(const Pass& pass) const {
  for (const PrivateTarget& target : private_targets_) {
    const auto* part = static_cast<const unsigned char*>(sources_[0]) + pass.from;
    if (!comm_.write_private(target.peer, target.into + pass.from, part, pass.bytes)) return target.peer;
  }
  return -1;
}

// `bytes` of scratch memory from the beginning of a page: copies to unaligned addresses are slow.
unsigned char* blink_op::scratch(std::vector<unsigned char>& memory, std::size_t bytes) {
  memory.resize(std::max(memory.size(), bytes + blink::kPage));
  const std::size_t beyond = reinterpret_cast<std::uintptr_t>(memory.data()) % blink::kPage;
  return memory.data() + (beyond == 0 ? 0 : blink::kPage - beyond);
}

// Copies a result to one target. Large results bypass the caches, because they would only evict other data, unless they
// overwrite data that this call has read.
void blink_op::copy_result(void* target, const void* source, std::size_t bytes) const {
  const auto* at = static_cast<const unsigned char*>(target);
  const bool was_read = input_ != nullptr && at < input_ + tables_.numbers.input_bytes && at + bytes > input_;
  const bool result = output_ != nullptr && at >= output_ && at < output_ + tables_.numbers.output_bytes;
  if (past_caches_ && result && !was_read) {
    blink::copy_past_caches(target, source, bytes);
  } else {
    blink::copy_bytes(target, source, bytes);
  }
}

void blink_op::combine(const blink_role& role, const std::vector<const void*>& sources,
                       const std::vector<void*>& targets, std::size_t bytes, std::int32_t own) const {
  const bool scaled = scaled_ && own >= 0;
  if (sources.size() == 1 && role.divisor <= 1 && !scaled) {
    for (void* target : targets) copy_result(target, sources[0], bytes);
    return;
  }
  blink::Finish finish;
  finish.own = scaled ? own : -1;
  finish.scale = scale_;
  finish.divisor = static_cast<std::uint32_t>(role.divisor);
  tables_.kernel->combine(targets.data(), static_cast<int>(targets.size()), sources.data(),
                          static_cast<int>(sources.size()), bytes / tables_.kernel->itemsize, finish);
}

// ---- small messages, with their flags inside

// Waits for block `number` of a message and returns its address; nullptr with `code` set on failure.
const void* blink_op::await_block(const blink_role& role, const blink_receive& r, std::size_t number, int& code) {
  const int peer = static_cast<int>(r.rank);
  const std::size_t total = static_cast<std::size_t>(role.length) * tables_.kernel->itemsize;
  const Block& block = routes_.block(r, number);
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
  // The peer made the same call by number but with other contents. The entries differ too, unless the hashes' low
  // halves collide.
  code = comm_.await_entry(peer);
  if (code == BLINK_OK) code = comm_.fail(BLINK_MISMATCH, site(BLINK_WAITS_MESSAGE, role, peer, 0), peer, "");
  return nullptr;
}

int blink_op::execute_inline(const blink_role& role) {
  const std::size_t total = static_cast<std::size_t>(role.length) * tables_.kernel->itemsize;
  int code = BLINK_OK;
  for (std::size_t number = at_.block; number * blink::kPayloadBytes < total; ++number) {
    const std::size_t from = number * blink::kPayloadBytes;
    const std::size_t bytes = std::min(blink::kPayloadBytes, total - from);
    std::int32_t own = -1;
    sources_.clear();
    for (std::int64_t i = 0; i <= role.receives; ++i) {
      if (i == role.own_operand_index && role.source != kNowhere) {
        own = static_cast<std::int32_t>(sources_.size());
        sources_.push_back(input_ + role.source + from);
      }
      if (i == role.receives) break;
      const void* block = await_block(role, tables_.receive(role, i), number, code);
      if (block == nullptr) {
        at_.block = number;
        return code;
      }
      sources_.push_back(block);
    }
    collect_own_target(role, from);
    for (const std::int64_t ring : tables_.sends_of(role)) {
      targets_.push_back(routes_.block(tables_.ring(ring), number).data(total));
    }
    if (!targets_.empty()) combine(role, sources_, targets_, bytes, own);
    for (const std::int64_t ring : tables_.sends_of(role)) {
      routes_.block(tables_.ring(ring), number).flag.store(flag(), std::memory_order_release);
    }
  }
  at_.block = 0;
  blink::Counters& stats = comm_.stats();
  for (const blink_receive& receive : tables_.receives_of(role)) {
    comm_.has_entered(static_cast<int>(receive.rank));
    ++stats.messages;
    stats.message_bytes += total;
    stats.inline_bytes += total;
  }
  wake_readers(role);
  return BLINK_OK;
}

// ---- the C interface

extern "C" {

blink_op* blink_op_create(blink_comm* comm, const blink_tables* tables) {
  if (comm->network() != nullptr && tables->inline_messages != 0) return nullptr;  // flags need shared memory
  auto read = blink::read_tables(*tables, comm->segment().shape(), comm->rank());
  const auto is_sendable = [comm](const blink_reader& reader) {
    const int peer = static_cast<int>(reader.rank);
    return !comm->is_remote(peer) || comm->network()->connects(peer, static_cast<std::size_t>(reader.rail));
  };
  if (read == nullptr || !std::all_of(read->readers.begin(), read->readers.end(), is_sendable)) return nullptr;
  return new blink_op(*comm, std::move(read));
}

void blink_op_destroy(blink_op* op) { delete op; }

uint64_t blink_op_signature(const blink_op* op) { return op->signature(); }

int blink_op_add_variant(blink_op* op, blink_op* variant) {
  constexpr std::size_t kMost = 15;  // a decision stores it in four bits
  if (op == nullptr || variant == nullptr || !op->takes_variants(kMost)) return BLINK_INVALID;
  op->add_variant(std::unique_ptr<blink_op>(variant));
  return BLINK_OK;
}

int blink_op_run(blink_op* op, const void* input, void* output, int scaled, double scale, int64_t timeout_us) {
  return op->run(input, output, scaled != 0, scale, timeout_us);
}

int blink_op_start(blink_op* op, const void* input, void* output, int64_t timeout_us, int64_t patience_us) {
  const int code = op->start(input, output, false, 1.0, timeout_us);
  return code == BLINK_OK ? op->step(patience_us) : code;
}

int blink_op_step(blink_op* op, int64_t patience_us) { return op->step(patience_us); }

int blink_op_finish(blink_op* op) { return op->finish(); }

int blink_op_only_receives(const blink_op* op) { return op->only_receives() ? 1 : 0; }

int blink_op_time(blink_op* op, blink_op* barrier, const void* input, void* output, int64_t iterations,
                  int64_t timeout_us, int with_barrier, double* seconds) {
  std::int32_t here = 1, there = 0;
  if (barrier != nullptr && !barrier->fits(sizeof here)) return BLINK_INVALID;
  for (std::int64_t i = 0; i < iterations; ++i) {
    std::int64_t began = now_ns();
    if (barrier != nullptr) {
      if (const int code = barrier->run(&here, &there, false, 1.0, timeout_us)) return code;
    }
    if (with_barrier == 0) began = now_ns();
    if (const int code = op->run(input, output, false, 1.0, timeout_us)) return code;
    seconds[i] = 1e-9 * static_cast<double>(now_ns() - began);
  }
  return BLINK_OK;
}

}  // extern "C"
