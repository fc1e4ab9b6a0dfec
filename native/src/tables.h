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

struct Tables {
  std::uint64_t signature = 0, what = 0;
  std::int64_t count = 0;
  const Kernel* kernel = nullptr;
  std::int64_t chunk_elements = 0;
  std::int64_t shift_bytes = 0, shifts = 1;
  bool inline_messages = false, direct_read_in_place = false, direct_write_in_place = false;
  bool lends_input = false, lends_output = false;  // also where it is private memory
  std::int64_t input_bytes = 0, output_bytes = 0;
  std::int64_t first_tick = 0, last_tick = 0;
  std::size_t queues = 0;
  std::vector<blink_role> roles;
  std::vector<blink_receive> receives;
  std::vector<std::int64_t> sends;
  std::vector<blink_ring> rings;
  std::vector<blink_reader> readers;

  const blink_receive& receive(const blink_role& role, std::int64_t i) const {
    return receives[static_cast<std::size_t>(role.first_receive + i)];
  }
  // The number of the ring that the role's i-th send goes into.
  std::size_t ring_number(const blink_role& role, std::int64_t i) const {
    return static_cast<std::size_t>(sends[static_cast<std::size_t>(role.first_send + i)]);
  }
  const blink_ring& ring(const blink_role& role, std::int64_t i) const { return rings[ring_number(role, i)]; }
  const blink_reader& reader(const blink_ring& ring, std::int64_t i) const {
    return readers[static_cast<std::size_t>(ring.first_reader + i)];
  }
};

// nullptr if they make no sense for `rank` of a segment of this shape.
std::unique_ptr<const Tables> read_tables(const blink_tables& given, const blink_shape& shape, int rank);

}  // namespace blink
