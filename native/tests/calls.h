// A rank's end of one collective on uint32 with its own buffers, for tests whose subject is not the data.
#pragma once

#include <cstdint>
#include <vector>

#include "check.h"
#include "plans.h"
#include "ranks.h"

namespace blink_test {

struct CallOptions {
  Kind kind = Kind::kOneHop;
  std::int64_t count = 300;
  bool small = false;
  bool in_heap = false;
  std::uint64_t signature = 0;  // 0: that of the call
  std::int64_t chunk = 16, slots = 1;
};

class Call {
 public:
  Call(const Room& room, blink_comm* comm, int rank, const CallOptions& options)
      : comm_(comm), rank_(rank), ranks_(room.ranks()) {
    const blink_binding binding{options.count, BLINK_UINT32, BLINK_SUM, 4 * (options.small ? options.count : options.chunk), 0};
    blink_error error{};
    const BoundHeld rows = bound(options.kind, room.shape(), rank, options.small, options.slots, binding, error);
    if (!expect(rows != nullptr, "a valid plan is not bound: %s", error.text)) std::exit(1);
    blink_tables tables = *blink_bound_tables(rows.get());
    if (options.signature != 0) tables.signature = options.signature;
    op_ = blink_op_create(comm, &tables);
    if (!expect(op_ != nullptr, "valid tables are rejected")) std::exit(1);
    output_ = tables.output_bytes / 4;
    own_in_.resize(static_cast<std::size_t>(tables.input_bytes / 4));
    own_out_.resize(static_cast<std::size_t>(output_));
    in_ = options.in_heap ? reinterpret_cast<std::uint32_t*>(room.heap(rank)) : own_in_.data();
    out_ = options.in_heap ? in_ + own_in_.size() : own_out_.data();
  }
  ~Call() { blink_op_destroy(op_); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Returns the code. The input is undefined.
  int run(std::int64_t timeout_us = kPatience) { return blink_op_run(op_, in_, out_, 0, 1, timeout_us); }

  // Starts the call; blink_op_step() continues it if the result is BLINK_AGAIN.
  int start(std::int64_t timeout_us = kPatience) { return blink_op_start(op_, in_, out_, timeout_us, 0); }

  // Runs and checks an AllReduce of (rank + 1) · factor.
  bool sum(std::uint32_t factor) {
    for (std::size_t i = 0; i < own_in_.size(); ++i) in_[i] = factor * static_cast<std::uint32_t>(rank_ + 1);
    const int code = run();
    if (!expect(code == BLINK_OK, "rank %d: code %d", rank_, code)) return false;
    const auto wanted = factor * static_cast<std::uint32_t>(ranks_ * (ranks_ + 1) / 2);
    for (std::int64_t i = 0; i < output_; ++i) {
      if (!expect(out_[i] == wanted, "rank %d: element %ld is wrong", rank_, static_cast<long>(i))) return false;
    }
    return true;
  }

  // The error of this thread's last call.
  blink_error error() const {
    blink_error found;
    blink_last_error(comm_, &found);
    return found;
  }

  blink_op* op() const { return op_; }

 private:
  blink_comm* comm_;
  int rank_, ranks_;
  blink_op* op_ = nullptr;
  std::vector<std::uint32_t> own_in_, own_out_;
  std::uint32_t* in_ = nullptr;
  std::uint32_t* out_ = nullptr;
  std::int64_t output_ = 0;
};

}  // namespace blink_test
