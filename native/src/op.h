// One rank's part of a Program, as it is run.
//
// The loop is the one of blinkccl/schedule/program.py: ticks, and in each tick the rank's roles in order. What is
// fused is only how an execution moves its bytes: all messages are combined in one pass straight from where they lie,
// and the result is written once to everywhere it has to be.
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
  // The same by steps: start() sets it up, step() goes on as far as nothing has to be waited for, finish() to its end.
  int start(const void* input, void* output, bool scaled, double scale, std::int64_t timeout_us);
  int step();
  int finish();
  // Another way to do the same; from the second one on the group finds out which is the fastest.
  void add_variant(std::unique_ptr<blink_op> variant);
  bool takes_variants(std::size_t most) const { return variants_.size() < most; }
  std::uint64_t signature() const { return tables_.numbers.signature; }
  // Whether its input and its output are of at most `bytes` each.
  bool fits(std::size_t bytes) const {
    const auto most = static_cast<std::int64_t>(bytes);
    return tables_.numbers.input_bytes <= most && tables_.numbers.output_bytes <= most;
  }

 private:
  using Chunk = blink::Chunk;

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

  // What an execution waits for.
  int await_readers_entry(const blink_role& role);
  bool available(const blink_receive& receive) const;
  int holder_of_slots(const blink_role& role) const;
  bool has_slots(const blink_role& role) const { return holder_of_slots(role) < 0; }
  // Who has not yet read the message that lies where the next one goes; -1: there is room.
  int holder_of_slot(const blink_ring& ring, std::uint64_t sent) const;
  const void* await_block(const blink_role& role, const blink_receive& receive, std::size_t number, int& code);

  // How it moves its bytes: from sources_ to targets_.
  int collect_sources(const blink_role& role, const Chunk& chunk, std::int32_t& own);
  int collect_targets(const blink_role& role, const Chunk& chunk);
  void collect_own_target(const blink_role& role, std::size_t bytes_before);
  bool collect_write(const blink_reader& reader, const Chunk& chunk);
  int move(const blink_role& role, const Chunk& chunk, std::int32_t own);
  int copy_private(const blink_role& role, const Chunk& chunk);
  int combine_private(const blink_role& role, const Chunk& chunk, std::int32_t own);
  int read_private(const blink_role& role, const blink_receive& receive, const Chunk& chunk, std::size_t from,
                   void* into, std::size_t bytes);
  unsigned char* scratch(std::size_t bytes);
  void copy_result(void* target, const void* source, std::size_t bytes) const;
  void combine(const blink_role& role, const std::vector<const void*>& sources, const std::vector<void*>& targets,
               std::size_t bytes, std::int32_t own);

  // What it tells the others.
  void publish(const blink_role& role, const Chunk& chunk, std::int64_t acknowledged);
  void acknowledge(const blink_receive& receive, const Chunk& chunk);
  void wake_readers(const blink_role& role);
  blink::Site site(std::int32_t waits, const blink_role& role, int peer, std::int64_t chunk) const;
  int not_lent(const blink_role& role, int peer, std::int64_t chunk);

  // Whether it lies in this rank's heap of shared tensors.
  bool is_shared(const void* buffer) const { return buffer != nullptr && comm_.heap_offset(buffer, 0) != blink::kNowhere; }
  bool is_misplaced(const void* buffer) const {
    return reinterpret_cast<std::uintptr_t>(buffer) % tables_.kernel->itemsize != 0;
  }
  blink::Line& line(std::int64_t rank, std::int64_t index) const {
    return comm_.segment().line(comm_.bank(), static_cast<int>(rank), index);
  }
  // Control words: the call's number, and below it how many of its messages, or what it is.
  std::uint64_t stamp(std::uint64_t count) const { return comm_.sequence() << blink::kCountBits | count; }
  std::uint64_t flag() const { return stamp(tables_.numbers.signature & static_cast<std::uint64_t>(blink::kMostMessages)); }

  blink_comm& comm_;
  const std::unique_ptr<const blink::Tables> owned_tables_;
  const blink::Tables& tables_;
  blink::Routes routes_;
  bool drains_ = false;  // a call may have to wait for readers of its buffers in the end

  std::vector<std::unique_ptr<blink_op>> variants_;  // beside this one
  std::unique_ptr<blink::VariantChoice> choice_;     // where there are any

  // Of the call that runs.
  const unsigned char* input_ = nullptr;
  unsigned char* output_ = nullptr;
  bool scaled_ = false;
  double scale_ = 1.0;
  bool past_caches_ = false;  // copies of results
  std::vector<std::uint64_t> received_;  // per queue
  std::vector<std::uint64_t> sent_;      // per ring
  blink_op* running_ = this;  // the variant
  blink::Call call_;
  // How far it is: what began to wait is begun anew from there.
  struct Position {
    bool begun = false;
    std::int64_t tick = 0;
    std::size_t role = 0;      // in that tick
    std::size_t block = 0;     // of an inline message
    std::int64_t operand = 0;  // of an execution step by step
    bool stepwise = false, own_added = false, empty = true;
    bool operator==(const Position& other) const {
      return begun == other.begun && tick == other.tick && role == other.role && block == other.block &&
             operand == other.operand && own_added == other.own_added;
    }
  };
  Position at_;
  std::int64_t stalled_us_ = 0;  // since when steps have been in vain; 0: they are not

  // Of the current execution.
  std::vector<const void*> sources_, piece_sources_;
  std::vector<void*> targets_, piece_targets_;
  struct PrivateSource {
    std::size_t source;  // index in sources_, where the address is missing: it is in the sender's own memory
    const blink_receive* receive;
  };
  std::vector<PrivateSource> private_sources_;
  struct PrivateTarget {
    int peer;
    std::uint64_t into;  // in the peer's own memory
  };
  std::vector<PrivateTarget> private_targets_;
  bool writes_others_ = false;  // some of the targets are in buffers of others
  std::vector<unsigned char> scratch_;
};
