// A plan: a Program laid out for all ranks of a host and any size, copied and checked. blink/host.h defines its rows.
//
// Wrong numbers must not cause invalid memory accesses: every index is checked once, when a plan is read. Numbers that
// also depend on a size are checked in the bound tables (tables.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "segment.h"

struct blink_plan {
  blink_plan_header header{};
  std::vector<blink_plan_rank> ranks;
  std::vector<blink_plan_slice> slices;
  std::vector<blink_plan_role> roles;
  std::vector<blink_plan_receive> receives;
  std::vector<std::int64_t> sends;  // rings
  std::vector<blink_plan_ring> rings;
  std::vector<std::int64_t> sources;  // slices
  std::vector<blink_plan_reader> readers;
};

// One rank's rows of a plan for one size.
struct blink_bound {
  blink_tables tables{};
  std::vector<blink_role> roles;
  std::vector<blink_receive> receives;
  std::vector<std::int64_t> sends;
  std::vector<blink_ring> rings;
  std::vector<blink_reader> readers;
};

namespace blink {

// The checksum of the words of a plan or bundle. It detects damage, not forgery.
std::uint64_t checksum(const unsigned char* words, std::size_t count);

// Returns nullptr and sets `why` if the bytes are not a valid plan.
std::unique_ptr<const blink_plan> read_plan(const void* bytes, std::uint64_t size, blink_error& why);

// Returns nullptr and sets `why` if the plan does not fit or is invalid. `blocks`, if not null, replaces the binding's
// count.
std::unique_ptr<const blink_bound> bind(const blink_plan& plan, const blink_shape& shape, int rank,
                                        const blink_binding& binding, const blink_blocks* blocks, blink_error& why);
blink_op* bind_op(blink_comm& comm, const blink_plan& plan, const blink_binding& binding, const blink_blocks* blocks,
                  blink_error& why);

// Writes the error to `why`, and returns nullptr.
std::nullptr_t refuse(blink_error& why, int code, const char* format, ...) __attribute__((format(printf, 3, 4)));

}  // namespace blink
