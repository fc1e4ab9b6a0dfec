// The data part of an execution: it reduces messages and the rank's own data, in order, and writes the result to all
// destinations, in one pass. Every thread takes units of 16 bytes through all operands.
#pragma once

#include "blink/wires.h"

namespace blink {
namespace device {

// ---- own data that are not aligned to words, or end within one: accessed in the widest pieces that their address
// allows; the elements themselves are aligned

// The widest piece, up to 4 bytes, to which all addresses p + 4·n are aligned.
BLINK_INLINE uint32_t piece_of(const void* p) {
  const uint32_t low = static_cast<uint32_t>(reinterpret_cast<Word>(p)) | 4;
  return low & (0 - low);
}

BLINK_INLINE uint32_t load_piece(const char* at, uint32_t bytes) {
  if (bytes == 4) return load<uint32_t>(at);
  if (bytes == 2) return load<uint16_t>(at);
  return load<uint8_t>(at);
}

BLINK_INLINE void store_piece(char* at, uint32_t bytes, uint32_t piece) {
  if (bytes == 4) return store<uint32_t>(at, piece);
  if (bytes == 2) return store<uint16_t>(at, static_cast<uint16_t>(piece));
  store<uint8_t>(at, static_cast<uint8_t>(piece));
}

// The bytes in this unit of a message of `total` bytes.
template <class Wire>
BLINK_INLINE uint32_t bytes_in(uint32_t unit, uint32_t total) {
  const uint32_t first = Units<Wire>::offset(unit);
  const uint32_t left = first < total ? total - first : 0;
  const uint32_t width = Units<Wire>::width(unit);
  return left < width ? left : width;
}

// Loads one unit of own data that are not whole words. This is rare, hence a loop over pieces, which costs the
// surrounding loop neither a call nor registers. It works on 32 bits at a time: a piece of 8 bytes is two of 4.
template <class Wire>
BLINK_INLINE Pair load_odd(const char* own, uint32_t unit, uint32_t total, uint32_t item) {
  const uint32_t bytes = bytes_in<Wire>(unit, total);
  const uint32_t piece = bytes % 4 == 0 ? piece_of(own) : item;
  const char* const at = own + Units<Wire>::offset(unit);
  uint32_t words[4] = {0, 0, 0, 0};
  BLINK_NO_UNROLL
  for (uint32_t i = 0; i < bytes; i += piece) {
    const uint32_t part = load_piece(at + i, piece) << (i % 4 * 8);
    BLINK_UNROLL
    for (uint32_t n = 0; n < 4; ++n) words[n] |= n == i / 4 ? part : 0;
  }
  return {words[0] | static_cast<Word>(words[1]) << 32, words[2] | static_cast<Word>(words[3]) << 32};
}

template <class Wire>
BLINK_INLINE void store_odd(char* kept, uint32_t unit, uint32_t total, uint32_t item, const Pair& data) {
  const uint32_t bytes = bytes_in<Wire>(unit, total);
  const uint32_t piece = bytes % 4 == 0 ? piece_of(kept) : item;
  char* const at = kept + Units<Wire>::offset(unit);
  BLINK_NO_UNROLL
  for (uint32_t i = 0; i < bytes; i += piece) {
    store_piece(at + i, piece, static_cast<uint32_t>((i < 8 ? data.low : data.high) >> (i % 8 * 8)));
  }
}

// ---- reducing

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

// The format of a single operand that is neither scaled nor divided: its bits pass through.
struct Untouched {
  static constexpr uint32_t kCount = 1;
  static constexpr bool kUntouched = true;
};

// The units of each operand that a thread has in flight, limited by the registers that kBlocksAtOnce leaves it.
// Accumulators of narrow floats take two or four times the registers of their input, and lines with flags some more;
// untouched data have no accumulators.
template <class Wire, class Format>
BLINK_INLINE constexpr uint32_t batch_of() {
  if (Format::kUntouched) return Units<Wire>::kFlagged ? 2 : 4;
  return Format::kCount > (Units<Wire>::kFlagged && Units<Wire>::kWords == 2 ? 2 : 4) ? 1 : 2;
}

// The operands in flight at a time: two, except where 16 bytes of a line become 16 accumulators.
template <class Wire, class Format>
BLINK_INLINE constexpr uint32_t in_flight() {
  return Units<Wire>::kFlagged && Units<Wire>::kWords * Format::kCount > 8 ? 1 : 2;
}

// One thread's next units: first, first + kWarp, …; constant strides take no registers.
template <class Wire, uint32_t kBatch>
struct Batch {
  State& state;
  uint32_t first;

  BLINK_INLINE uint32_t unit(uint32_t n) const { return first + n * kWarp; }
  BLINK_INLINE bool live(uint32_t n) const { return unit(n) < state.job.units; }

  // Starts to read an operand; true if all of it has arrived.
  BLINK_INLINE bool fetch(uint32_t operand, Pair (&raw)[kBatch]) const {
    if (operand != state.job.own_operand_index) return look(state.job.message(operand), raw);
    load_own(raw);
    return true;
  }

  // Waits for the rest of the operand, and removes the flags. False: given up.
  BLINK_INLINE bool accept(uint32_t operand, bool ready, Pair (&raw)[kBatch]) const {
    if (!Units<Wire>::kFlagged || operand == state.job.own_operand_index) return true;
    const uint32_t receive = state.job.message(operand);
    Patience patience;
    BLINK_NO_UNROLL
    while (!Units<Wire>::warp_all(ready)) {
      if (Units<Wire>::warp_any(should_give_up(state, patience, receive, false))) return false;
      ready = look(receive, raw);
    }
    // A flag shows that its line has arrived, but other threads may have loaded their part of it before. So load again.
    if constexpr (Units<Wire>::kReloads) look(receive, raw);
    BLINK_UNROLL
    for (uint32_t n = 0; n < kBatch; ++n) raw[n] = Units<Wire>::data(raw[n]);
    return true;
  }

  BLINK_INLINE void put(const Pair (&data)[kBatch]) const {
    BLINK_NO_UNROLL
    for (uint32_t send = state.job.receives; send < state.job.receives + state.job.sends; ++send) {
      char* const message = state.message[send];
      const Word position = Units<Wire>::kFlagged ? state.position[send] : 0;
      Units<Wire>::warp_sync();
      BLINK_UNROLL
      for (uint32_t n = 0; n < kBatch; ++n) {
        if (live(n)) Units<Wire>::write(message, unit(n), position, data[n]);
      }
    }
    if (state.job.kept != nullptr) store_own(data);
  }

 private:
  BLINK_INLINE bool look(uint32_t receive, Pair (&raw)[kBatch]) const {
    const char* const message = state.message[receive];
    const Word position = Units<Wire>::kFlagged ? state.position[receive] : 0;
    bool ready = true;
    Units<Wire>::warp_sync();
    BLINK_UNROLL
    for (uint32_t n = 0; n < kBatch; ++n) {
      if (live(n)) ready = Units<Wire>::read(message, unit(n), position, raw[n]) && ready;
    }
    return ready;
  }
  // If some unit is not whole words, all are loaded one after another, by pieces.
  BLINK_INLINE void load_own(Pair (&data)[kBatch]) const {
    const Job& job = state.job;
    if (unit(kBatch - 1) < job.whole) {
      BLINK_UNROLL
      for (uint32_t n = 0; n < kBatch; ++n) {
        data[n] = Units<Wire>::load_own(job.own + Units<Wire>::offset(unit(n)), unit(n));
      }
      return;
    }
    BLINK_NO_UNROLL
    for (uint32_t n = 0; n < kBatch; ++n) {
      const Pair odd = load_odd<Wire>(job.own, unit(n), job.bytes, state.item_bytes);
      BLINK_UNROLL
      for (uint32_t m = 0; m < kBatch; ++m) data[m] = m == n ? odd : data[m];
    }
  }
  BLINK_INLINE void store_own(const Pair (&data)[kBatch]) const {
    const Job& job = state.job;
    if (unit(kBatch - 1) < job.whole) {
      BLINK_UNROLL
      for (uint32_t n = 0; n < kBatch; ++n) {
        Units<Wire>::store_own(job.kept + Units<Wire>::offset(unit(n)), unit(n), data[n]);
      }
      return;
    }
    BLINK_NO_UNROLL
    for (uint32_t n = 0; n < kBatch; ++n) {
      Pair odd = data[0];
      BLINK_UNROLL
      for (uint32_t m = 1; m < kBatch; ++m) odd = m == n ? data[m] : odd;
      store_odd<Wire>(job.kept, unit(n), job.bytes, state.item_bytes, odd);
    }
  }
};

// The accumulators of a batch.
template <class Wire, class Format, uint32_t kBatch>
struct Sums {
  static constexpr uint32_t kWords = Units<Wire>::kWords;
  typedef typename Format::Acc Accs[kBatch * kWords][Format::kCount];

  BLINK_INLINE static void narrow(const Accs& from, Pair (&data)[kBatch]) {
    BLINK_UNROLL
    for (uint32_t n = 0; n < kBatch; ++n) {
      data[n].low = Format::narrow(from[n * kWords]);
      data[n].high = kWords == 2 ? Format::narrow(from[n * kWords + kWords - 1]) : 0;
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

// Multiplies by the factor of the own data, and rounds as for a message, so the bits are the same on every rank.
template <class Format>
BLINK_INLINE void scale(const State& state, typename Format::Acc (&accs)[Format::kCount]) {
  typename Format::Acc stored[Format::kCount];
  Format::widen(state.scale, stored);
  const typename Format::Acc factor = state.scale_kind == kScaleGiven ? Format::given(state.scale) : stored[0];
  BLINK_UNROLL
  for (uint32_t i = 0; i < Format::kCount; ++i) accs[i] = Format::product(accs[i], factor);
  Format::widen(Format::narrow(accs), accs);
}

// Reduces an operand into the sums; the first one initialises them.
template <class Wire, class Format, uint32_t kBatch>
BLINK_INLINE void enter(const State& state, uint32_t operand, const Pair (&data)[kBatch],
                        typename Sums<Wire, Format, kBatch>::Accs& sums) {
  constexpr uint32_t kWords = Units<Wire>::kWords;
  const uint32_t op = operand == 0 ? kTakesNext : state.op;
  const bool scaled = operand == state.job.own_operand_index && state.scale_kind != kUnscaled;
  BLINK_UNROLL
  for (uint32_t n = 0; n < kBatch * kWords; ++n) {
    typename Format::Acc next[Format::kCount];
    Format::widen(n % kWords == 0 ? data[n / kWords].low : data[n / kWords].high, next);
    if (scaled) scale<Format>(state, next);
    combine<Format>(op, sums[n], next);
  }
}

// True if the next operand is loaded together with this one. The job is read from shared memory each time, since a
// value kept across a wait takes a register, and ptxas for sm_120 has none left.
template <uint32_t kInFlight>
BLINK_INLINE bool next_beside(const Job& job, uint32_t operand) {
  return kInFlight == 2 && operand + 1 < load_shared(job.receives) + (job.joins() ? 1 : 0);
}

template <class Wire, class Format, uint32_t kBatch>
BLINK_INLINE bool combine_batch(const Batch<Wire, kBatch>& batch) {
  typedef Sums<Wire, Format, kBatch> S;
  const State& state = batch.state;
  typename S::Accs sums = {};
  constexpr uint32_t kInFlight = in_flight<Wire, Format>();
  BLINK_NO_UNROLL
  for (uint32_t operand = 0; operand < state.job.operands(); operand += kInFlight) {
    Pair a[kBatch] = {};
    Pair b[kBatch] = {};
    const bool a_ready = batch.fetch(operand, a);
    const bool b_ready = !next_beside<kInFlight>(state.job, operand) || batch.fetch(operand + 1, b);
    if (!batch.accept(operand, a_ready, a)) return false;
    enter<Wire, Format, kBatch>(state, operand, a, sums);
    if (!next_beside<kInFlight>(state.job, operand)) continue;
    if (!batch.accept(operand + 1, b_ready, b)) return false;
    enter<Wire, Format, kBatch>(state, operand + 1, b, sums);
  }
  if (state.job.divisor > 1) S::divide(sums, state.job.divisor);
  Pair data[kBatch];
  S::narrow(sums, data);
  batch.put(data);
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
BLINK_OUTLINE bool fold_as(State& state) {
  constexpr uint32_t kBatch = batch_of<Wire, Format>();
  // Values that the loop reads again from shared memory take no registers.
  BLINK_NO_UNROLL
  for (uint32_t first = thread_index() / kWarp * kWarp * kBatch + thread_index() % kWarp;
       first < Units<Wire>::padded(load_shared(state.job.units));
       first += load_shared(state.folding) * kBatch) {
    const Batch<Wire, kBatch> batch = {state, first};
    if constexpr (Format::kUntouched) {
      if (!carry_batch(batch)) return false;
    } else {
      if (!combine_batch<Wire, Format>(batch)) return false;
    }
  }
  return true;
}

template <class Wire>
BLINK_INLINE bool fold(State& state) {
  const Job& job = state.job;
  const bool scaled = job.joins() && state.scale_kind != kUnscaled;
  if (job.operands() == 1 && !scaled && job.divisor <= 1) return fold_as<Wire, Untouched>(state);
#ifdef BLINK_MOVES_ONLY  // defined by generated text without reductions: most of the compiler's work is below
  return true;
#else
  switch (state.dtype) {
    case BLINK_INT8: return fold_as<Wire, Int8>(state);
    case BLINK_UINT8: return fold_as<Wire, Uint8>(state);
    case BLINK_INT32: return fold_as<Wire, Int32>(state);
    case BLINK_UINT32: return fold_as<Wire, Uint32>(state);
    case BLINK_INT64: return fold_as<Wire, Int64>(state);
    case BLINK_UINT64: return fold_as<Wire, Uint64>(state);
    case BLINK_FLOAT16: return fold_as<Wire, Float16>(state);
    case BLINK_BFLOAT16: return fold_as<Wire, Bfloat16>(state);
    case BLINK_FLOAT32: return fold_as<Wire, Float32>(state);
    case BLINK_FLOAT64: return fold_as<Wire, Float64>(state);
    case BLINK_FLOAT8_E4M3FN: return fold_as<Wire, Float8E4M3>(state);
    case BLINK_FLOAT8_E5M2: return fold_as<Wire, Float8E5M2>(state);
#ifndef BLINK_CUDA
    case BLINK_INT16: return fold_as<Wire, Int16>(state);
    case BLINK_UINT16: return fold_as<Wire, Uint16>(state);
    case BLINK_BOOL: return fold_as<Wire, Uint8>(state);
#endif
    default: return true;  // the launcher refuses all other types
  }
#endif
}

}  // namespace device
}  // namespace blink
