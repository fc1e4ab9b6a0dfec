// What an execution does to the data: it combines its messages and the rank's own data, in order, and writes the result
// to all its destinations, in one pass: every thread takes units of 16 bytes through all operands.
#pragma once

#include "blink/own.h"

namespace blink {
namespace device {

// The same for all threads of a block.
struct Job {
  const char* own;  // joins as operand number `own_operand_index`
  char* kept;       // nullptr: not kept
  uint32_t bytes;
  uint32_t receives, sends;
  uint32_t own_operand_index;    // kNoOwnOperand: the own data do not join
  uint32_t divisor;
  uint32_t units;   // of the message
  uint32_t whole;   // so many of them, the first ones, are whole words of the own data

  BLINK_INLINE bool joins() const { return own_operand_index != kNoOwnOperand; }
  BLINK_INLINE uint32_t operands() const { return receives + (joins() ? 1 : 0); }
  BLINK_INLINE uint32_t message(uint32_t operand) const { return operand > own_operand_index ? operand - 1 : operand; }
};

template <class Wire>
BLINK_INLINE Job job_of(const char* own, char* kept, uint32_t bytes, uint32_t receives, uint32_t sends,
                        uint32_t own_operand_index, uint32_t divisor) {
  Job job = {own, kept, bytes, receives, sends, own_operand_index, divisor, Units<Wire>::count(bytes), 0};
  Word addresses = 0;
  if (job.joins()) addresses |= reinterpret_cast<Word>(own);
  if (kept != nullptr) addresses |= reinterpret_cast<Word>(kept);
  if (addresses % Units<Wire>::kAlignment == 0) job.whole = Units<Wire>::whole(bytes);
  return job;
}

// A single operand, neither scaled nor divided: its bits pass through.
struct Untouched {
  static constexpr uint32_t kCount = 1;
  static constexpr bool kUntouched = true;
};

// Units that a thread has in flight at once, of each of two operands. Accumulators of narrow floats take two or four
// times the registers of what they are read from; a message with flags is short, or arrives line by line.
template <class Wire, class Format>
BLINK_INLINE constexpr uint32_t batch_of() {
  constexpr uint32_t kMost = Units<Wire>::kFlagged ? 2 : 4;
  return Format::kCount == 8 ? kMost / 2 : kMost;
}

// One thread's next units: first, first + threads, …
template <class Wire, uint32_t kBatch>
struct Batch {
  State& state;
  const Job& job;
  uint32_t first;

  BLINK_INLINE uint32_t unit(uint32_t n) const { return first + n * threads(); }
  BLINK_INLINE bool live(uint32_t n) const { return unit(n) < job.units; }

  // Begins to read an operand. Whether all of it is there.
  BLINK_INLINE bool fetch(uint32_t operand, Pair (&raw)[kBatch]) const {
    if (operand == job.own_operand_index) {
      load_own(raw);
      return true;
    }
    const char* const message = state.message[job.message(operand)];
    const Word position = Units<Wire>::kFlagged ? state.position[job.message(operand)] : 0;
    bool ready = true;
    Units<Wire>::warp_sync();
    BLINK_UNROLL
    for (uint32_t n = 0; n < kBatch; ++n) {
      if (live(n)) ready = Units<Wire>::read(message, unit(n), position, raw[n]) && ready;
    }
    return ready;
  }

  // Waits until it is there, and takes the flags away. False: given up.
  BLINK_INLINE bool accept(uint32_t operand, bool ready, Pair (&raw)[kBatch]) const {
    if (!Units<Wire>::kFlagged || operand == job.own_operand_index) return true;
    Patience patience;
    BLINK_NO_UNROLL
    while (!Units<Wire>::warp_all(ready)) {
      if (Units<Wire>::warp_any(should_give_up(state, patience, job.message(operand), false))) return false;
      ready = fetch(operand, raw);
    }
    BLINK_UNROLL
    for (uint32_t n = 0; n < kBatch; ++n) {
      if (live(n)) Units<Wire>::clear(state.message[job.message(operand)], unit(n));
      raw[n] = Units<Wire>::data(raw[n]);
    }
    return true;
  }

  BLINK_INLINE void put(const Pair (&data)[kBatch]) const {
    BLINK_NO_UNROLL
    for (uint32_t send = job.receives; send < job.receives + job.sends; ++send) {
      char* const message = state.message[send];
      const Word position = Units<Wire>::kFlagged ? state.position[send] : 0;
      Units<Wire>::warp_sync();
      BLINK_UNROLL
      for (uint32_t n = 0; n < kBatch; ++n) {
        if (live(n)) Units<Wire>::write(message, unit(n), position, data[n]);
      }
    }
    if (job.kept != nullptr) store_own(data);
  }

 private:
  BLINK_INLINE void load_own(Pair (&data)[kBatch]) const {
    if (unit(kBatch - 1) < job.whole) {
      BLINK_UNROLL
      for (uint32_t n = 0; n < kBatch; ++n) {
        data[n] = Units<Wire>::load_own(job.own + Units<Wire>::offset(unit(n)), unit(n));
      }
    } else {
      BLINK_UNROLL
      for (uint32_t n = 0; n < kBatch; ++n) {
        if (unit(n) < job.whole) {
          data[n] = Units<Wire>::load_own(job.own + Units<Wire>::offset(unit(n)), unit(n));
        } else if (live(n)) {
          data[n] = load_odd<Wire>(job.own, unit(n), job.bytes, state.item_bytes);
        }
      }
    }
  }
  BLINK_INLINE void store_own(const Pair (&data)[kBatch]) const {
    BLINK_UNROLL
    for (uint32_t n = 0; n < kBatch; ++n) {
      if (unit(n) < job.whole) {
        Units<Wire>::store_own(job.kept + Units<Wire>::offset(unit(n)), unit(n), data[n]);
      } else if (live(n)) {
        store_odd<Wire>(job.kept, unit(n), job.bytes, state.item_bytes, data[n]);
      }
    }
  }
};

// Accumulators of a batch.
template <class Wire, class Format, uint32_t kBatch>
struct Sums {
  static constexpr uint32_t kWords = Units<Wire>::kWords;
  typedef typename Format::Acc Accs[kBatch * kWords][Format::kCount];

  BLINK_INLINE static void widen(const Pair (&data)[kBatch], Accs& to) {
    BLINK_UNROLL
    for (uint32_t n = 0; n < kBatch; ++n) {
      Format::widen(data[n].low, to[n * kWords]);
      if constexpr (kWords == 2) Format::widen(data[n].high, to[n * kWords + 1]);
    }
  }
  BLINK_INLINE static void narrow(const Accs& from, Pair (&data)[kBatch]) {
    BLINK_UNROLL
    for (uint32_t n = 0; n < kBatch; ++n) {
      data[n].low = Format::narrow(from[n * kWords]);
      data[n].high = kWords == 2 ? Format::narrow(from[n * kWords + kWords - 1]) : 0;
    }
  }
  BLINK_INLINE static void scale(Accs& accs, typename Format::Acc factor) {
    BLINK_UNROLL
    for (uint32_t n = 0; n < kBatch * kWords; ++n) {
      BLINK_UNROLL
      for (uint32_t i = 0; i < Format::kCount; ++i) accs[n][i] = Format::product(accs[n][i], factor);
    }
  }
  BLINK_INLINE static void divide(Accs& accs, uint32_t divisor) {
    BLINK_UNROLL
    for (uint32_t n = 0; n < kBatch * kWords; ++n) {
      BLINK_UNROLL
      for (uint32_t i = 0; i < Format::kCount; ++i) accs[n][i] = Format::quotient(accs[n][i], divisor);
    }
  }
};

// The own data's factor as an accumulator.
template <class Format>
BLINK_INLINE typename Format::Acc factor_of(const State& state) {
  if (state.scale_kind == kScaleGiven) return Format::given(state.scale);
  typename Format::Acc accs[Format::kCount];
  Format::widen(state.scale, accs);
  return accs[0];
}

template <class Wire, class Format, uint32_t kBatch>
BLINK_INLINE bool combine_batch(const Batch<Wire, kBatch>& batch) {
  typedef Sums<Wire, Format, kBatch> S;
  const State& state = batch.state;
  const Job& job = batch.job;
  const uint32_t operands = job.operands();
  const uint32_t scaled = state.scale_kind != kUnscaled ? job.own_operand_index : kNoOwnOperand;
  Pair a[kBatch] = {};
  Pair b[kBatch] = {};
  typename S::Accs sums;
  typename S::Accs next;
  // Two operands on their way at once.
  const bool a_ready = batch.fetch(0, a);
  bool b_ready = operands < 2 || batch.fetch(1, b);
  if (!batch.accept(0, a_ready, a)) return false;
  S::widen(a, sums);
  if (scaled == 0) S::scale(sums, factor_of<Format>(state));
  BLINK_NO_UNROLL
  for (uint32_t operand = 1; operand < operands; ++operand) {
    if (operand > 1) b_ready = batch.fetch(operand, b);
    if (!batch.accept(operand, b_ready, b)) return false;
    S::widen(b, next);
    if (scaled == operand) S::scale(next, factor_of<Format>(state));
    combine<Format>(state.op, sums, next);
  }
  if (job.divisor > 1) S::divide(sums, job.divisor);
  S::narrow(sums, a);
  batch.put(a);
  return true;
}

template <class Wire, uint32_t kBatch>
BLINK_INLINE bool carry_batch(const Batch<Wire, kBatch>& batch) {
  Pair data[kBatch] = {};
  const bool ready = batch.fetch(0, data);
  if (!batch.accept(0, ready, data)) return false;
  batch.put(data);
  return true;
}

// False: given up.
template <class Wire, class Format>
BLINK_OUTLINE bool fold_as(State& state, const Job job) {
  constexpr uint32_t kBatch = batch_of<Wire, Format>();
  const uint32_t end = Units<Wire>::padded(job.units);
  BLINK_NO_UNROLL
  for (uint32_t first = thread_index(); first < end; first += threads() * kBatch) {
    const Batch<Wire, kBatch> batch = {state, job, first};
    if constexpr (Format::kUntouched) {
      if (!carry_batch(batch)) return false;
    } else {
      if (!combine_batch<Wire, Format>(batch)) return false;
    }
  }
  return true;
}

template <class Wire>
BLINK_INLINE bool fold(State& state, const Job& job) {
  const bool scaled = job.joins() && state.scale_kind != kUnscaled;
  if (job.operands() == 1 && !scaled && job.divisor <= 1) return fold_as<Wire, Untouched>(state, job);
#ifdef BLINK_MOVES_ONLY  // generated text says so where nothing is combined: most of a compiler's work is below
  return true;
#else
  switch (state.dtype) {
    case BLINK_INT8: return fold_as<Wire, Int8>(state, job);
    case BLINK_UINT8: return fold_as<Wire, Uint8>(state, job);
    case BLINK_INT32: return fold_as<Wire, Int32>(state, job);
    case BLINK_UINT32: return fold_as<Wire, Uint32>(state, job);
    case BLINK_INT64: return fold_as<Wire, Int64>(state, job);
    case BLINK_UINT64: return fold_as<Wire, Uint64>(state, job);
    case BLINK_FLOAT16: return fold_as<Wire, Float16>(state, job);
    case BLINK_BFLOAT16: return fold_as<Wire, Bfloat16>(state, job);
    case BLINK_FLOAT32: return fold_as<Wire, Float32>(state, job);
    case BLINK_FLOAT64: return fold_as<Wire, Float64>(state, job);
    case BLINK_FLOAT8_E4M3FN: return fold_as<Wire, Float8E4M3>(state, job);
    case BLINK_FLOAT8_E5M2: return fold_as<Wire, Float8E5M2>(state, job);
#ifndef BLINK_CUDA
    case BLINK_INT16: return fold_as<Wire, Int16>(state, job);
    case BLINK_UINT16: return fold_as<Wire, Uint16>(state, job);
    case BLINK_BOOL: return fold_as<Wire, Uint8>(state, job);
#endif
    default: return true;  // the launcher serves no other type
  }
#endif
}

}  // namespace device
}  // namespace blink
