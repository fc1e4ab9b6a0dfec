// Programs as rows. The functions of generated text run once, in a context that records their calls, and kernels and
// copy engines interpret the recorded rows. So a kernel's code does not grow with the programs, and one kernel runs all
// programs of a file. The code that moves and reduces data is compiled once per wire, and that is most of a GPU
// compiler's work. A GPU compiler itself runs the text; on a CPU the text runs when the rows are first needed.
#pragma once

#include "blink/context.h"

namespace blink {

// The wire of a context that only records.
struct Noted {};

namespace device {

// A slice, with the arguments in the text.
struct Piece {
  uint32_t source_block, target_block;
  uint32_t start_num, start_den, stop_num, stop_den;
  uint32_t turn;
};

// An execution's use of its ends.
struct Order {
  uint8_t receives, sends;
  uint8_t own_operand_index;
  bool keeps, completes;
};

// Ends of either kind that fit into a word.
constexpr uint32_t kPacked = 8;

// One execution per tick.
struct Row {
  Word from, to;       // its ends, 8 bits each, if they fit
  int32_t chunk;       // its chunk in the first tick; below 0: it begins in a later tick
  uint32_t first_end;  // otherwise the beginning of the list of its ends
  uint8_t slice;
  Order order;
};

// A rank's channel: the position and number of its pieces, connections and rows.
struct Channel {
  uint32_t first_piece, pieces;
  uint32_t first_connection, connections;
  uint32_t first_row, rows;
  uint32_t num, den;  // of the largest share; 0: all are equal
  uint32_t contributors;
};

// The totals of a program.
struct Sizes {
  uint32_t ranks, channels;  // channels of each rank
  uint32_t pieces, connections, rows, ends;
};

// A program, in GPU memory or in this process.
struct ProgramRows {
  uint32_t channels;
  const Channel* channel;  // number rank · channels + channel
  const Piece* pieces;
  const uint32_t* connections;
  const Row* rows;
  const uint8_t* ends;  // of rows with more ends than fit
};

// The destination of a recording context; nullptr: it only counts.
struct Notes {
  Sizes sizes;
  Channel channel;
  Piece* pieces;
  uint32_t* connections;
  Row* rows;
  uint8_t* ends;
};

}  // namespace device

template <>
class ContextBase<Noted> {
 public:
  BLINK_DEVICE explicit ContextBase(device::Notes& notes) : notes_(notes) {}
  ContextBase(const ContextBase&) = delete;
  ContextBase& operator=(const ContextBase&) = delete;

  BLINK_DEVICE void program(uint32_t ranks, uint32_t channels) {
    notes_.sizes.ranks = ranks;
    notes_.sizes.channels = channels;
  }
  template <class... Id>
  BLINK_DEVICE void open(Id... connections) {
    static_assert(sizeof...(Id) <= kMostEnds, "a channel opens at most 128 connections");
    notes_.channel.connections = sizeof...(Id);
    (note(notes_.connections, notes_.sizes.connections, static_cast<uint32_t>(connections)), ...);
  }
  BLINK_DEVICE void close() {}
  BLINK_DEVICE void contributors(uint32_t count) { notes_.channel.contributors = count; }
  // True for one tick, since all ticks have the same executions.
  BLINK_DEVICE bool running() { return first_++ == 0; }
  BLINK_DEVICE void largest(uint32_t num, uint32_t den) {
    notes_.channel.num = num;
    notes_.channel.den = den;
  }
  BLINK_DEVICE const Slice& slice(uint32_t source_block, uint32_t target_block, uint32_t start_num, uint32_t start_den,
                               uint32_t stop_num, uint32_t stop_den, uint32_t turn = 0) {
    note(notes_.pieces, notes_.sizes.pieces,
         device::Piece{source_block, target_block, start_num, start_den, stop_num, stop_den, turn});
    Slice& slice = slices_[notes_.channel.pieces++];
    slice.chunks = kMany;
    return slice;
  }

 protected:
  template <uint32_t kFrom, uint32_t kTo>
  BLINK_DEVICE void execute(const Slice& slice, Word k, const Ends<kFrom>& from, uint32_t own_operand_index,
                         const Ends<kTo>& to, bool keeps, Completion completion) {
    device::Row row = {};
    row.chunk = static_cast<int32_t>(static_cast<uint32_t>(k));
    row.slice = static_cast<uint8_t>(&slice - slices_);
    row.order = {kFrom, kTo, static_cast<uint8_t>(own_operand_index), keeps, completion == complete};
    row.first_end = notes_.sizes.ends;
    const bool fits = kFrom <= device::kPacked && kTo <= device::kPacked;
    constexpr int kReceives = kFrom;
    constexpr int kSends = kTo;
    for (int i = 0; i < kReceives; ++i) put(row.from, i, from.at[i], fits);
    for (int i = 0; i < kSends; ++i) put(row.to, i, to.at[i], fits);
    note(notes_.rows, notes_.sizes.rows, row);
    ++notes_.channel.rows;
  }

 private:
  static constexpr Word kMany = Word{1} << 40;

  template <class T>
  BLINK_DEVICE static void note(T* list, uint32_t& count, const T& what) {
    if (list != nullptr) list[count] = what;
    ++count;
  }
  BLINK_DEVICE void put(Word& packed, int i, End end, bool fits) {
    if (fits) {
      packed |= static_cast<Word>(end) << (8 * i);
    } else {
      note(notes_.ends, notes_.sizes.ends, static_cast<uint8_t>(end));
    }
  }

  device::Notes& notes_;
  Slice slices_[kMostSlices] = {};
  uint32_t first_ = 0;
};

namespace device {

typedef void (*Text)(KernelContext<Noted>&, uint32_t rank, uint32_t channel);

BLINK_DEVICE uint32_t at_least_one(uint32_t count) { return count == 0 ? 1 : count; }

// Records all channels of all ranks, one after another.
template <Text kText>
BLINK_DEVICE Sizes noted(Notes notes, Channel* channels) {
  notes.sizes.ranks = 1;
  notes.sizes.channels = 1;
  for (uint32_t number = 0; number < notes.sizes.ranks * notes.sizes.channels; ++number) {
    const Sizes& before = notes.sizes;
    notes.channel = {before.pieces, 0, before.connections, 0, before.rows, 0, 0, 0, 1};
    KernelContext<Noted> context(notes);
    kText(context, number / notes.sizes.channels, number % notes.sizes.channels);
    if (channels != nullptr) channels[number] = notes.channel;
  }
  return notes.sizes;
}

#ifdef BLINK_BLOCKS

template <Text kText>
struct Table {
  static constexpr Sizes kSizes = noted<kText>(Notes{}, nullptr);
  Channel channels[at_least_one(kSizes.ranks * kSizes.channels)] = {};
  Piece pieces[at_least_one(kSizes.pieces)] = {};
  uint32_t connections[at_least_one(kSizes.connections)] = {};
  Row rows[at_least_one(kSizes.rows)] = {};
  uint8_t ends[at_least_one(kSizes.ends)] = {};

  BLINK_DEVICE Table() { noted<kText>(Notes{{}, {}, pieces, connections, rows, ends}, channels); }
};

template <Text kText>
BLINK_TABLE Table<kText> table = Table<kText>();

template <Text kText>
BLINK_INLINE ProgramRows rows_of() {
  const Table<kText>& all = table<kText>;
  return {Table<kText>::kSizes.channels, all.channels, all.pieces, all.connections, all.rows, all.ends};
}

#else

template <class T>
struct List {
  explicit List(uint32_t count) : at(new T[at_least_one(count)]()) {}
  List(const List&) = delete;
  List& operator=(const List&) = delete;
  ~List() { delete[] at; }
  T* const at;
};

struct Table {
  explicit Table(Sizes (*note)(Notes, Channel*)) : sizes(note({}, nullptr)) {
    note({{}, {}, pieces.at, connections.at, rows.at, ends.at}, channels.at);
  }
  const Sizes sizes;
  List<Channel> channels{sizes.ranks * sizes.channels};
  List<Piece> pieces{sizes.pieces};
  List<uint32_t> connections{sizes.connections};
  List<Row> rows{sizes.rows};
  List<uint8_t> ends{sizes.ends};
};

template <Text kText>
ProgramRows rows_of() {
  static const Table all(noted<kText>);
  return {all.sizes.channels, all.channels.at, all.pieces.at, all.connections.at, all.rows.at, all.ends.at};
}

#endif

// The rows of the program number `wanted`.
template <Text... kTexts>
BLINK_INLINE ProgramRows program_rows(uint32_t wanted) {
  ProgramRows program = {};
  uint32_t number = 0;
  ((number++ == wanted ? static_cast<void>(program = rows_of<kTexts>()) : static_cast<void>(0)), ...);
  return program;
}

}  // namespace device
}  // namespace blink

// BLINK_ENTRY defines a kernel that runs any of `…`, each the text of a program; the call selects it. Block b is part b
// % parts of channel b / parts. BLINK_COPY_ENTRY defines a program's rows for copy engines, which move data without a
// kernel: libblink.so enqueues copies, waits and reduce kernels on streams (native/copies/copy_engine.h; Blink, MLSys
// 2020, §4.1 and §4.2.2). With BLINK_COPIES a file is compiled for these rows only, and the object needs no library.
#define BLINK_COPY_ENTRY(name, function)
#if defined(BLINK_COPIES)
#define BLINK_ENTRY(name, Wire, ...)
#undef BLINK_COPY_ENTRY
#define BLINK_COPY_ENTRY(name, function)                                                                          \
  extern "C" __attribute__((visibility("default"))) const ::blink::device::ProgramRows* name() {                  \
    static const ::blink::device::ProgramRows rows = ::blink::device::rows_of<function>();                        \
    return &rows;                                                                                                 \
  }
#elif defined(BLINK_CUDA)
#include "blink/block.h"
#define BLINK_ENTRY(name, Wire, ...)                                                                              \
  extern "C" __global__ void __launch_bounds__(::blink::kMostThreads, ::blink::kBlocksAtOnce)                     \
      name(const __grid_constant__ ::blink::Call call) {                                                          \
    __shared__ ::blink::device::BlockMemory memory;                                                               \
    ::blink::device::run<::blink::Wire, __VA_ARGS__>(memory, call, blockIdx.x);                                   \
  }
#elif defined(BLINK_EMULATED)  // called for each of its threads
#include "blink/block.h"
#define BLINK_ENTRY(name, Wire, ...)                                                                              \
  extern "C" __attribute__((visibility("default"))) void name(const ::blink::Call* call, uint32_t block) {        \
    auto& memory = ::blink::device::block_state<::blink::device::BlockMemory>();                                  \
    ::blink::device::run<::blink::Wire, __VA_ARGS__>(memory, *call, block);                                       \
  }
#else
// Runs a block of a program, in libblink_device.so. `wire` is its kNumber.
extern "C" void blink_run_block(const blink::device::ProgramRows* program, uint32_t wire, const blink::Call* call,
                                uint32_t block);
#define BLINK_ENTRY(name, Wire, ...)                                                                              \
  extern "C" __attribute__((visibility("default"))) void name(const ::blink::Call* call, uint32_t block) {        \
    const ::blink::device::ProgramRows program = ::blink::device::program_rows<__VA_ARGS__>(call->program);       \
    blink_run_block(&program, ::blink::Wire::kNumber, call, block);                                               \
  }                                                                                                               \
  extern "C" __attribute__((visibility("default"))) const char name##_programs[];                                 \
  const char name##_programs[] = #__VA_ARGS__;
#endif
