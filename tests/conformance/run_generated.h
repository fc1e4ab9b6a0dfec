// Runs cases of generated code from standard input, and reports outputs that differ from the expected ones.
//
// A case is a line of numbers: the program's index; ranks, blocks, parts, slots, slot_bytes, line_bytes, count,
// chunk_bytes; the number of connections, and of each src, dst, ring, lines, tail, dst_position, head, src_position; per
// rank the segment's bytes, the number of its inputs and the inputs, the number of its outputs and the expected outputs.
// Elements are int32 and are summed. Each case is launched six times on one memory, with all protocols in turn.
#pragma once

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <vector>

#include "blink/call.h"

#ifdef BLINK_EMULATED
#include "emulate/launch.h"
#else
#include "host/launch.h"
#endif

typedef void (*Entry)(const blink::Call*, uint32_t);

// True if all blocks ended; emulated blocks have 64 threads each.
inline bool launched(Entry entry, const std::vector<blink::Call>& calls, std::uint32_t blocks) {
  const auto ranks = static_cast<std::uint32_t>(calls.size());
#ifdef BLINK_EMULATED
  char text[600] = "";
  const int code = blink_emulate(entry, calls.data(), ranks, blocks, 64, 0, text, sizeof text);
  std::printf("%s", text);
  return code == 0;
#else
  return blink_launch(entry, calls.data(), ranks, blocks, 0) == 0;
#endif
}

inline std::uint64_t number() {
  long long read = 0;
  std::cin >> read;
  return static_cast<std::uint64_t>(read);
}

struct alignas(128) Line {
  char bytes[128];
};

struct RankMemory {
  std::vector<Line> segment;
  std::vector<blink::Connection> connections;
  std::vector<std::int32_t> input, output, wanted;
  char* at(std::uint64_t offset) { return segment[0].bytes + offset; }
  blink::Word* word(std::uint64_t offset) { return reinterpret_cast<blink::Word*>(at(offset)); }
};

inline void read_values(std::vector<std::int32_t>* values) {
  values->resize(number());
  for (std::int32_t& value : *values) value = static_cast<std::int32_t>(number());
}

inline void connect(std::vector<RankMemory>& ranks, const std::vector<std::uint64_t>& at, std::size_t connection) {
  RankMemory &source = ranks[at[0]], &target = ranks[at[1]];
  blink::Connection both = {target.at(at[2]), target.at(at[3]), target.word(at[4]), source.word(at[6]), nullptr};
  both.position = source.word(at[7]);
  source.connections[connection] = both;
  both.position = target.word(at[5]);
  target.connections[connection] = both;
}

// True if the case that begins with `index` gave the expected outputs.
inline bool run_case(const Entry* entries, std::uint64_t index) {
  const auto ranks = static_cast<std::uint32_t>(number()), blocks = static_cast<std::uint32_t>(number());
  blink::Call call = {};
  call.parts = static_cast<std::uint32_t>(number());
  call.slots = static_cast<std::uint32_t>(number());
  call.slot_bytes = number();
  call.line_bytes = number();
  call.count = number();
  call.chunk_bytes = number();
  call.dtype = 4;  // int32
  call.timeout_ns = 60u * 1000000000ull;
  std::vector<std::vector<std::uint64_t>> places(number(), std::vector<std::uint64_t>(8));
  for (auto& place : places) {
    for (std::uint64_t& value : place) value = number();
  }
  std::vector<RankMemory> memory(ranks);
  for (RankMemory& rank : memory) {
    rank.segment.resize(number() / 128 + 1);
    rank.connections.resize(places.size() + 1);
    read_values(&rank.input);
    read_values(&rank.wanted);
  }
  for (std::size_t i = 0; i < places.size(); ++i) connect(memory, places[i], i);
  constexpr std::uint64_t kProtocols = 3;
  for (const std::uint64_t protocol : {0, 1, 2, 1, 0, 2}) {
    const std::uint64_t entry = kProtocols * index + protocol;
    const std::uint32_t never = 0;
    std::vector<blink::Status> statuses(ranks);
    std::vector<blink::Call> calls(ranks, call);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      RankMemory& own = memory[rank];
      own.output.assign(own.wanted.size(), -1);
      calls[rank].rank = rank;
      calls[rank].input = reinterpret_cast<const char*>(own.input.data());
      calls[rank].output = reinterpret_cast<char*>(own.output.data());
      calls[rank].connections = own.connections.data();
      calls[rank].abort = &never;
      calls[rank].status = &statuses[rank];
    }
    if (!launched(entries[entry], calls, blocks)) {
      std::printf("entry %d: a block gave up\n", static_cast<int>(entry));
      return false;
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      if (memory[rank].output == memory[rank].wanted) continue;
      std::printf("entry %d: rank %u has other numbers\n", static_cast<int>(entry), rank);
      return false;
    }
  }
  return true;
}

inline int run_cases(const Entry* entries) {
  int cases = 0;
  long long index = 0;
  for (; std::cin >> index; ++cases) {
    if (!run_case(entries, static_cast<std::uint64_t>(index))) return 1;
  }
  std::printf("%d cases\n", cases);
  return 0;
}
