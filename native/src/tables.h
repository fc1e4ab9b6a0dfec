// One rank's tables of a Program for one size: copied from Python, and checked. blink/host.h says what the rows mean.
//
// Wrong tables must not become wild accesses: every index and every place is looked at once, here. What peers say only
// when they call, where their shared buffers are, is looked at then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "segment.h"

namespace blink {

// Rows that follow one another.
template <class Row>
struct Range {
  const Row* first;
  const Row* last;
  const Row* begin() const { return first; }
  const Row* end() const { return last; }
};

struct Tables {
  blink_tables numbers{};  // as given, but for the tables, which may be gone
  const Kernel* kernel = nullptr;
  bool lends_input = false, lends_output = false;  // also where it is private memory
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
  // The numbers of the rings that the role's sends go into.
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

// nullptr if they make no sense for `rank` of a segment of this shape.
std::unique_ptr<const Tables> read_tables(const blink_tables& given, const blink_shape& shape, int rank);

}  // namespace blink
