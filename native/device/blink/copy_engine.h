// The kernel context of copy engines, which move data without a kernel. The same channel functions are run on the host,
// once per call, and the context moves nothing itself: it names each execution to libblink.so, which puts copies, waits
// and reduce kernels into streams (native/shim/copy_engine.h; Blink, MLSys 2020, §4.1 and §4.2.2).
//
// Where BLINK_COPIES is defined a file is compiled for this and nothing else: kernels' entries become nothing, and the
// object needs no library. Elsewhere, and for GPUs, the copy entries become nothing.
#pragma once

#include "blink/target.h"

#ifndef BLINK_BLOCKS

#include "blink/context.h"

namespace blink {

// The wire of messages that copy engines carry.
struct CopyEngine {};

// One execution. `ordinal` counts the channel's executions within a tick: with the channel it names the role.
struct CopyExecution {
  uint32_t channel, ordinal;
  Execution
      what;  // ends are numbers of the channel's open(); the divisor is that of an average, whatever the operation
};

// What takes the executions. Its calls are made in the order of the generated loops, channel by channel.
class Copies {
 public:
  virtual uint32_t rank() const = 0;
  // The channel's connections, which ends count from 0.
  virtual void open(uint32_t channel, const uint32_t* connections, uint32_t count) = 0;
  // rounds_of and cut, of cut.h.
  virtual Word rounds(Word num, Word den) const = 0;
  virtual Slice slice(Word source_block, Word target_block, Word start_num, Word start_den, Word stop_num,
                      Word stop_den, Word rounds) const = 0;
  // Chunk k of the slice is there. False: given up.
  virtual bool execute(const Slice& slice, Word k, const CopyExecution& execution) = 0;

 protected:
  ~Copies() = default;
};

template <>
class ContextBase<CopyEngine> {
 public:
  ContextBase(Copies& copies, uint32_t channel) : copies_(copies) { execution_.channel = channel; }
  ContextBase(const ContextBase&) = delete;
  ContextBase& operator=(const ContextBase&) = delete;

  void program(uint32_t, uint32_t) {}
  template <class... Id>
  void open(Id... connections) {
    static_assert(sizeof...(Id) <= kMostEnds, "a channel opens at most 128 connections");
    const uint32_t list[] = {0, static_cast<uint32_t>(connections)...};
    copies_.open(execution_.channel, list + 1, static_cast<uint32_t>(sizeof...(Id)));
  }
  void close() {}
  void contributors(uint32_t count) { contributors_ = count; }
  // The loop asks once per tick.
  bool running() {
    execution_.ordinal = 0;
    return running_;
  }

  void largest(Word num, Word den) { rounds_ = copies_.rounds(num, den); }
  Slice slice(Word source_block, Word target_block, Word start_num, Word start_den, Word stop_num,
              Word stop_den, Word = 0) const {  // there is one part, so it is all the same where pieces begin
    return copies_.slice(source_block, target_block, start_num, start_den, stop_num, stop_den, rounds_);
  }

 protected:
  template <uint32_t kFrom, uint32_t kTo>
  void execute(const Slice& slice, Word k, const Ends<kFrom>& from, uint32_t own_operand_index, const Ends<kTo>& to,
               bool keeps, Completion completion) {
    if (k < slice.chunks && running_) {
      execution_.what = {
          from.at, to.at, kFrom, kTo, own_operand_index, keeps, completion == complete ? contributors_ : 1};
      running_ = copies_.execute(slice, k, execution_);
    }
    ++execution_.ordinal;
  }

 private:
  Copies& copies_;
  CopyExecution execution_ = {};
  Word rounds_ = 0;
  uint32_t contributors_ = 1;
  bool running_ = true;
};

}  // namespace blink

#endif

#ifdef BLINK_COPIES

#define BLINK_COPY_ENTRY(name, function)                                                                          \
  extern "C" __attribute__((visibility("default"))) void name(::blink::Copies* copies, uint32_t channel) {        \
    ::blink::KernelContext<::blink::CopyEngine> context(*copies, channel);                                        \
    function(context, copies->rank(), channel);                                                                   \
  }

#undef BLINK_ENTRY
#define BLINK_ENTRY(name, Wire, ...)
#undef BLINK_FOLD_ENTRY
#define BLINK_FOLD_ENTRY(name)

#else

#define BLINK_COPY_ENTRY(name, function)

#endif
