// Ranks of a generated program in one process: connections with all their memory, and a call for each rank.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "blink/context.h"

namespace {

using blink::Call;
using blink::Connection;
using blink::Word;

struct Geometry {
  std::uint32_t parts, slots;
  Word slot_bytes, line_bytes;
};

// Zeroed, at a multiple of 128, and not a byte too long.
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
      char* const lines = add(messages * of.line_bytes);
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

  // As if every connection had passed `position` messages.
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

  // Calls body(words of one slot's lines, which slot).
  template <class Body>
  void for_lines(Body body) {
    for (std::size_t id = 0; id < connections_; ++id) {
      Memory& lines = memory_[kPieces * id + 1];
      for (std::size_t message = 0; message < lines.size / geometry.line_bytes; ++message) {
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
