// Ranks of a generated program in one process: connections with all their memory, and a call for each rank. Blocks run
// with one thread each or, with BLINK_EMULATED, with 32 to 128 emulated threads and a schedule of their own.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "blink/block.h"
#include "blink/context.h"
#include "check.h"

#ifdef BLINK_EMULATED
#include "emulate/launch.h"
#else
#include <chrono>
#include <thread>

#include "host/launch.h"
#endif

namespace {

#ifdef BLINK_EMULATED

constexpr bool kEmulated = true;
std::uint64_t schedule = 1;  // the next seed

// A single warp publishes its own messages; of several warps the last one does.
inline std::uint32_t block_threads() { return schedule % 5 == 0 ? 32 : schedule % 2 == 0 ? 64 : 128; }

// Returns the result of blink_launch; 2 means a finding, which is printed. The schedule has no clock: a launch times
// out when no thread makes progress.
inline int launch_blocks(void (*entry)(const blink::Call*, std::uint32_t), const blink::Call* calls,
                         std::uint32_t ranks, std::uint32_t blocks, double) {
  blink::emulate::Options options;
  options.seed = schedule++;
  options.stuck = [&] {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) *const_cast<std::uint32_t*>(calls[rank].abort) = 1;
  };
  const std::string finding = blink::emulate::run(
      {ranks, blocks, block_threads()}, [&](std::uint32_t rank, std::uint32_t block) { entry(calls + rank, block); },
      options);
  if (!finding.empty()) {
    std::printf("%s\n", finding.c_str());
    return 2;
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (calls[rank].status->code != 0) return 1;
  }
  return 0;
}

#define TEST_MEMORY(name) auto& name = blink::device::block_state<blink::device::BlockMemory>()

// Runs body() as the only block of the only rank.
template <class Body>
void run_alone(Body body) {
  blink::emulate::Options options;
  options.seed = schedule++;
  const std::string finding =
      blink::emulate::run({1, 1, block_threads()}, [&](std::uint32_t, std::uint32_t) { body(); }, options);
  blink_test::expect(finding.empty(), "%s", finding.c_str());
}

inline void linger(std::uint32_t ms) {
  for (std::uint32_t i = 0; i < 2 * ms; ++i) blink::emulate::pause();
}

#else

constexpr bool kEmulated = false;

inline int launch_blocks(void (*entry)(const blink::Call*, std::uint32_t), const blink::Call* calls,
                         std::uint32_t ranks, std::uint32_t blocks, double timeout_s) {
  return blink_launch(entry, calls, ranks, blocks, timeout_s);
}

#define TEST_MEMORY(name) blink::device::BlockMemory name

template <class Body>
void run_alone(Body body) {
  body();
}

inline void linger(std::uint32_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

#endif

// One execution as the only block of the only rank, with all elements in one chunk.
template <class Wire>
void run_row(blink::Call call, const blink::device::Row& row, const std::vector<std::uint32_t>& connections,
             std::uint32_t contributors = 1) {
  const blink::device::Piece whole = {0, 0, 0, 1, 1, 1, 0};
  const auto count = static_cast<std::uint32_t>(connections.size());
  const blink::device::Channel channel = {0, 1, 0, count, 0, 1, 0, 0, contributors};
  const blink::device::ProgramRows program = {1, &channel, &whole, connections.data(), &row, nullptr};
  call.rank = 0;
  run_alone([&] {
    TEST_MEMORY(memory);
    blink::device::run_channel<Wire>(memory, call, program, 0, 0);
  });
}

using blink::Call;
using blink::Connection;
using blink::Word;

struct Geometry {
  std::uint32_t parts, slots;
  Word slot_bytes, line_bytes;
};

// Zeroed memory, aligned to 128 bytes, without a spare byte.
struct Memory {
  std::unique_ptr<char, void (*)(void*)> bytes;
  std::size_t size;

  explicit Memory(std::size_t wanted) : bytes(static_cast<char*>(aligned_alloc(128, wanted)), std::free), size(wanted) {
    std::memset(bytes.get(), 0, size);
  }
  Word* words() { return reinterpret_cast<Word*>(bytes.get()); }
};

class Mesh {
 public:
  using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;  // source and destination of each connection

  Mesh(std::uint32_t rank_count, const Pairs& pairs, const Geometry& of)
      : geometry(of), ranks(rank_count), aborts(rank_count), statuses(rank_count), tables_(rank_count) {
    for (auto& table : tables_) table.assign(pairs.size(), Connection{});
    const std::size_t messages = static_cast<std::size_t>(of.parts) * of.slots;
    for (std::size_t id = 0; id < pairs.size(); ++id) {
      char* const ring = add(messages * of.slot_bytes);
      char* const lines = add(2 * messages * of.line_bytes);  // per part LL's, then LL128's
      Word* const tail = counters();
      Word* const head = counters();
      tables_[pairs[id].first][id] = {ring, lines, tail, head, counters()};
      tables_[pairs[id].second][id] = {ring, lines, tail, head, counters()};
    }
    connections_ = pairs.size();
  }

  Call call(std::uint32_t rank) {
    statuses[rank] = {};
    aborts[rank] = 0;
    Call call = {};
    call.connections = tables_[rank].data();
    call.abort = &aborts[rank];
    call.status = &statuses[rank];
    call.timeout_ns = 20u * 1000000000ull;
    call.slot_bytes = geometry.slot_bytes;
    call.line_bytes = geometry.line_bytes;
    call.slots = geometry.slots;
    call.parts = geometry.parts;
    call.rank = rank;
    call.dtype = 5;
    return call;
  }

  const Connection& end(std::uint32_t rank, std::size_t id) const { return tables_[rank][id]; }

  // Sets all connections to the state after `position` messages.
  void pretend(Word position) {
    for (auto& table : tables_) {
      for (const Connection& end : table) {
        if (end.ring == nullptr) continue;
        for (std::uint32_t part = 0; part < geometry.parts; ++part) {
          for (Word* const word : {end.tail, end.head, end.position}) word[part * blink::kStride] = position;
        }
      }
    }
  }

  // Calls body(words of one slot's lines of LL, which slot).
  template <class Body>
  void for_lines(Body body) {
    for (std::size_t id = 0; id < connections_; ++id) {
      Memory& lines = memory_[kPieces * id + 1];
      for (std::size_t message = 0; message < std::size_t{2} * geometry.parts * geometry.slots; ++message) {
        if (message / geometry.slots % 2 == 1) continue;  // LL128's
        body(lines.words() + message * geometry.line_bytes / 8, message % geometry.slots);
      }
    }
  }

  const Geometry geometry;
  const std::uint32_t ranks;
  std::vector<std::uint32_t> aborts;
  std::vector<blink::Status> statuses;

 private:
  char* add(std::size_t bytes) { return memory_.emplace_back(bytes).bytes.get(); }
  Word* counters() { return reinterpret_cast<Word*>(add(geometry.parts * blink::kStride * sizeof(Word))); }

  std::vector<std::vector<Connection>> tables_;
  static constexpr std::size_t kPieces = 6;  // of a connection: ring, lines, tail, head, two positions
  std::vector<Memory> memory_;
  std::size_t connections_ = 0;
};

}  // namespace
