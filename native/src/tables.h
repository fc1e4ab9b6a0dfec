// One rank's tables of a Program for one size, copied and checked. blink/host.h defines the rows.
//
// Wrong tables must not cause invalid memory accesses: every index and every place is checked once, here. The places of
// peers' shared buffers, which are known only during a call, are checked then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "segment.h"

namespace blink {

// Consecutive rows.
template <class Row>
struct Range {
  const Row* first;
  const Row* last;
  const Row* begin() const { return first; }
  const Row* end() const { return last; }
};

struct Tables {
  blink_tables numbers{};  // as passed in, except for its pointers, which may be dangling
  const Kernel* kernel = nullptr;
  bool lends_input = false, lends_output = false;  // true also for private memory
  std::int64_t first_tick = 0, last_tick = 0;
  std::vector<blink_role> roles;
  std::vector<blink_receive> receives;
  std::vector<std::int64_t> sends;
  std::vector<blink_ring> rings;
  std::vector<blink_reader> readers;

  Range<blink_receive> receives_of(const blink_role& role) const {
    return range(receives, role.first_receive, role.receives);
  }
  const blink_receive& receive(const blink_role& role, std::int64_t i) const {
    return receives[static_cast<std::size_t>(role.first_receive + i)];
  }
  // The indexes of the rings into which the role sends.
  Range<std::int64_t> sends_of(const blink_role& role) const { return range(sends, role.first_send, role.sends); }
  const blink_ring& ring(std::int64_t number) const { return rings[static_cast<std::size_t>(number)]; }
  Range<blink_reader> readers_of(const blink_ring& ring) const {
    return range(readers, ring.first_reader, ring.readers);
  }

 private:
  template <class Row>
  static Range<Row> range(const std::vector<Row>& rows, std::int64_t first, std::int64_t count) {
    return {rows.data() + first, rows.data() + first + count};
  }
};

// Returns nullptr if the tables are invalid for `rank` of a segment of this shape.
std::unique_ptr<const Tables> read_tables(const blink_tables& given, const blink_shape& shape, int rank);

}  // namespace blink
