// One rank's part of a Program, as it is executed.
//
// The loop is the one of blinkccl/schedule/program.py: ticks, and in each tick the rank's roles in order. Only the data
// movement of an execution is fused: one pass reduces all messages at their places, and writes the result once to each
// of its destinations.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm.h"
#include "routes.h"
#include "tables.h"
#include "variants.h"

struct blink_op {
 public:
  blink_op(blink_comm& comm, std::unique_ptr<const blink::Tables> tables);
  int run(const void* input, void* output, bool scaled, double scale, std::int64_t timeout_us);
  // The same in steps: start() prepares the call, step() progresses until it would have to wait for longer than
  // `patience_us`, finish() completes it.
  int start(const void* input, void* output, bool scaled, double scale, std::int64_t timeout_us);
  int step(std::int64_t patience_us);
  int finish();
  // Whether all executions that send are done, in a call whose messages need no acknowledgement.
  bool only_receives() const;
  // Adds an alternative implementation. With two or more the group measures which is the fastest.
  void add_variant(std::unique_ptr<blink_op> variant);
  bool takes_variants(std::size_t most) const { return variants_.size() < most; }
  std::uint64_t signature() const { return tables_.numbers.signature; }
  // Whether its input and its output have at most `bytes` each.
  bool fits(std::size_t bytes) const {
    const auto most = static_cast<std::int64_t>(bytes);
    return tables_.numbers.input_bytes <= most && tables_.numbers.output_bytes <= most;
  }

 private:
  using Chunk = blink::Chunk;

  // A part of an execution's chunk that one thread moves.
  struct Pass {
    const blink_role& role;
    const Chunk& chunk;
    std::int32_t own;
    std::size_t from, bytes;
  };
  // A thread's own memory during a pass.
  struct PassMemory {
    std::vector<const void*> sources;
    std::vector<void*> targets;
    std::vector<unsigned char> scratch;
  };
  struct PrivateSource {
    std::size_t source;  // index in sources_, whose entry is null: the data is in the sender's own memory
    int peer;
    std::uint64_t from;  // address there
  };
  struct PrivateTarget {
    int peer;
    std::uint64_t into;  // address in the peer's own memory
  };

  int check(const void* input, const void* output);
  int prepare(const void* input, void* output, bool scaled, double scale, std::int64_t timeout_us);
  int complete();
  int go_on();
  int run_from_position();
  bool is_in_place(const unsigned char* input, const unsigned char* output) const {
    return input != nullptr && output != nullptr && input < output + tables_.numbers.output_bytes &&
           output < input + tables_.numbers.input_bytes;
  }
  int run_ticks();
  void record(std::size_t number, std::int64_t chunk);
  int execute(const blink_role& role, std::int64_t index);
  int execute_stepwise(const blink_role& role, const Chunk& chunk);
  int execute_inline(const blink_role& role);
  int drain();

  // Conditions that an execution waits for.
  int await_readers_entry(const blink_role& role);
  bool available(const blink_receive& receive);
  int holder_of_slots(const blink_role& role) const;
  bool has_slots(const blink_role& role) const { return holder_of_slots(role) < 0; }
  // A reader that has not read the message in the next slot; -1: the slot is free.
  int holder_of_slot(const blink_ring& ring, std::uint64_t sent) const;
  const void* await_block(const blink_role& role, const blink_receive& receive, std::size_t number, int& code);

  // The data movement of an execution: from sources_ to targets_.
  int collect_sources(const blink_role& role, const Chunk& chunk, std::int32_t& own);
  int collect_targets(const blink_role& role, const Chunk& chunk);
  void collect_own_target(const blink_role& role, std::size_t bytes_before);
  bool collect_write(const blink_reader& reader, const Chunk& chunk);
  int move(const blink_role& role, const Chunk& chunk, std::int32_t own);
  template <class MovePart>
  void divide(std::size_t bytes, MovePart move_part);
  PrivateSource private_source(const blink_receive& receive, const Chunk& chunk) const;
  int read_and_combine(const Pass& pass, PassMemory& memory) const;
  int copy_private(const Pass& pass, PassMemory& memory) const;
  bool read_private(const PrivateSource& source, void* into, std::size_t from, std::size_t bytes) const;
  int write_private(const Pass& pass) const;
  static unsigned char* scratch(std::vector<unsigned char>& memory, std::size_t bytes);
  void copy_result(void* target, const void* source, std::size_t bytes) const;
  void combine(const blink_role& role, const std::vector<const void*>& sources, const std::vector<void*>& targets,
               std::size_t bytes, std::int32_t own) const;

  // Messages between hosts.
  void make_inboxes();
  void begin_messages();
  blink::Inbox* inbox(const blink_receive& receive) {
    const std::int64_t place = inbox_of_.empty() ? kNone : inbox_of_[static_cast<std::size_t>(receive.queue)];
    return place == kNone ? nullptr : &inboxes_.all[static_cast<std::size_t>(place)];
  }
  bool has_remote_readers(const blink_ring& ring) const;
  // The place of an execution's message for other hosts in this rank's own buffers; nullptr: it is in the ring's slot.
  const unsigned char* kept_message(const blink_role& role, const blink_ring& ring, const Chunk& chunk) const;
  void send(const blink_role& role, const blink_ring& ring, const Chunk& chunk, std::uint64_t number);

  // Notifications to the other ranks.
  void publish(const blink_role& role, const Chunk& chunk, std::int64_t acknowledged);
  void acknowledge(const blink_receive& receive, const Chunk& chunk);
  void wake_readers(const blink_role& role);
  blink::Site site(std::int32_t waits, const blink_role& role, int peer, std::int64_t chunk) const;
  int not_lent(const blink_role& role, int peer, std::int64_t chunk);

  // Whether the buffer is in this rank's heap of shared tensors.
  bool is_shared(const void* buffer) const { return buffer != nullptr && comm_.heap_offset(buffer, 0) != blink::kNowhere; }
  bool is_misplaced(const void* buffer) const {
    return reinterpret_cast<std::uintptr_t>(buffer) % tables_.kernel->itemsize != 0;
  }
  blink::Line& line(std::int64_t rank, std::int64_t index) const {
    return comm_.segment().line(comm_.bank(), static_cast<int>(rank), index);
  }
  // Control words: the call's number, and in the lower bits a message count or a part of the signature.
  std::uint64_t stamp(std::uint64_t count) const { return comm_.sequence() << blink::kCountBits | count; }
  std::uint64_t flag() const { return stamp(tables_.numbers.signature & static_cast<std::uint64_t>(blink::kMostMessages)); }

  blink_comm& comm_;
  const std::unique_ptr<const blink::Tables> owned_tables_;
  const blink::Tables& tables_;
  blink::Routes routes_;
  bool drains_ = false;  // at its end a call may have to wait for readers of its buffers

  // Between hosts: the inbox of each queue, or kNone; per inbox the role that alone takes its messages and only keeps them,
  // or kNone; and per row of readers the messages sent to them.
  static constexpr std::int64_t kNone = -1;
  blink::Inboxes inboxes_;
  std::vector<std::int64_t> inbox_of_, keeper_of_;
  std::vector<std::vector<const blink::Network::Sent*>> posted_;

  std::vector<std::unique_ptr<blink_op>> variants_;  // in addition to this operation;
  std::unique_ptr<blink::VariantChoice> choice_;     // null without variants

  // State of the current call.
  const unsigned char* input_ = nullptr;
  unsigned char* output_ = nullptr;
  bool scaled_ = false, in_place_ = false;
  double scale_ = 1.0;
  bool past_caches_ = false;  // copies of results bypass the caches;
  std::vector<std::uint64_t> received_;  // per queue;
  std::vector<std::uint64_t> sent_;      // per ring;
  blink_op* running_ = this;  // the variant
  blink::Call call_;
  // Progress of the call; a step that would have to wait is retried from there.
  struct Position {
    bool begun = false;
    std::int64_t tick = 0;
    std::size_t role = 0;      // in that tick;
    std::size_t block = 0;     // of an inline message;
    std::int64_t operand = 0;  // of a stepwise execution
    bool stepwise = false, own_added = false, empty = true;
    bool operator==(const Position& other) const {
      return begun == other.begun && tick == other.tick && role == other.role && block == other.block &&
             operand == other.operand && own_added == other.own_added;
    }
  };
  Position at_;
  std::int64_t stalled_us_ = 0;  // time of the first step without progress; 0: the last one made some

  // State of the current execution.
  std::vector<const void*> sources_;
  std::vector<void*> targets_;
  std::vector<PrivateSource> private_sources_;
  std::vector<PrivateTarget> private_targets_;
  bool writes_others_ = false;  // some targets are in other ranks' buffers
  std::vector<PassMemory> passes_ = std::vector<PassMemory>(1);  // by thread
};
