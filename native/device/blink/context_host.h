// The kernel context on a CPU. Generated text reaches the device layer's bodies by plain C functions of
// libblink_device.so, so that a generated file need not compile them again.
#pragma once

#include "blink/context.h"

namespace blink {

// For a context's state, kept in the context itself so that there is nothing to allocate.
constexpr uint32_t kRoomBytes = 12288;

struct Execution {
  const End* from;
  const End* to;
  uint32_t receives, sends;
  uint32_t own_operand_index;
  uint32_t keeps;    // into the own output
  uint32_t divisor;  // > 1: ends an average
};

}  // namespace blink

extern "C" {
void blink_context_begin(void* room, const blink::Call* call, uint32_t wire, uint32_t channel, uint32_t part);
void blink_context_open(void* room, const uint32_t* connections, uint32_t count);
void blink_context_close(void* room);
blink::Word blink_context_rounds(const void* room, blink::Word num, blink::Word den);
void blink_context_slice(const void* room, blink::Word source_block, blink::Word target_block, blink::Word start_num,
                      blink::Word start_den, blink::Word stop_num, blink::Word stop_den, blink::Word turn,
                      blink::Word rounds, blink::Slice* slice);
// False: given up.
int blink_context_execute(void* room, const blink::Slice* slice, blink::Word k, const blink::Execution* execution);
}

namespace blink {

template <class Wire>
class ContextBase {
 public:
  ContextBase(const Call& call, uint32_t channel, uint32_t part) : average_(call.average) {
    blink_context_begin(room_, &call, Wire::kNumber, channel, part);
  }
  ContextBase(const ContextBase&) = delete;
  ContextBase& operator=(const ContextBase&) = delete;

  void program(uint32_t, uint32_t) {}
  template <class... Id>
  void open(Id... connections) {
    static_assert(sizeof...(Id) <= kMostEnds, "a channel opens at most 128 connections");
    const uint32_t list[] = {0, static_cast<uint32_t>(connections)...};
    blink_context_open(room_, list + 1, static_cast<uint32_t>(sizeof...(Id)));
  }
  void close() { blink_context_close(room_); }
  void contributors(uint32_t count) { contributors_ = count; }
  bool running() const { return running_; }

  void largest(Word num, Word den) { rounds_ = blink_context_rounds(room_, num, den); }
  Slice slice(Word source_block, Word target_block, Word start_num, Word start_den, Word stop_num,
              Word stop_den, Word turn = 0) const {
    Slice slice;
    blink_context_slice(room_, source_block, target_block, start_num, start_den, stop_num, stop_den, turn, rounds_,
                        &slice);
    return slice;
  }

 protected:
  template <uint32_t kFrom, uint32_t kTo>
  void execute(const Slice& slice, Word k, const Ends<kFrom>& from, uint32_t own_operand_index, const Ends<kTo>& to,
               bool keeps, Completion completion) {
    if (k >= slice.chunks || !running_) return;
    const uint32_t divisor = completion == complete && average_ != 0 ? contributors_ : 1;
    const Execution execution = {from.at, to.at, kFrom, kTo, own_operand_index, keeps, divisor};
    running_ = blink_context_execute(room_, &slice, k, &execution) != 0;
  }

 private:
  alignas(16) char room_[kRoomBytes];
  Word rounds_ = 0;
  uint32_t average_;
  uint32_t contributors_ = 1;
  bool running_ = true;
};

}  // namespace blink

// A kernel that runs all of `…`, each the text of a program; the call says which. Block b is part b % parts of channel
// b / parts.
#define BLINK_ENTRY(name, Wire, ...)                                                                              \
  extern "C" __attribute__((visibility("default"))) void name(const ::blink::Call* call, uint32_t block) {        \
    ::blink::KernelContext<::blink::Wire> context(*call, block / call->parts, block % call->parts);               \
    void (*const programs[])(::blink::KernelContext<::blink::Wire>&, uint32_t, uint32_t) = {__VA_ARGS__};         \
    programs[call->program](context, call->rank, block / call->parts);                                            \
  }                                                                                                               \
  extern "C" __attribute__((visibility("default"))) const char name##_programs[];                                     \
  const char name##_programs[] = #__VA_ARGS__;
