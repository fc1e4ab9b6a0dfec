// A plan: a Program laid out for all ranks of a host and any size, copied and checked; blink/host.h says what its rows
// mean.
//
// Wrong numbers must not become wild accesses: every index is looked at once, when a plan is read. What depends on a
// size too is looked at in the tables that it is bound to (tables.h).
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

// A plan's rows of one rank for one size.
struct blink_bound {
  blink_tables tables{};
  std::vector<blink_role> roles;
  std::vector<blink_receive> receives;
  std::vector<std::int64_t> sends;
  std::vector<blink_ring> rings;
  std::vector<blink_reader> readers;
};

namespace blink {

// The sum that plans and bundles carry of their words: for damage, not against forgers.
std::uint64_t checksum(const unsigned char* words, std::size_t count);

// nullptr and `why` for what is no plan.
std::unique_ptr<const blink_plan> read_plan(const void* bytes, std::uint64_t size, blink_error& why);

// nullptr and `why` for what has no room or makes no sense. `blocks`, if there are any, instead of the binding's count.
std::unique_ptr<const blink_bound> bind(const blink_plan& plan, const blink_shape& shape, int rank,
                                        const blink_binding& binding, const blink_blocks* blocks, blink_error& why);
blink_op* bind_op(blink_comm& comm, const blink_plan& plan, const blink_binding& binding, const blink_blocks* blocks,
                  blink_error& why);

// Says it in `why`, and returns nullptr.
std::nullptr_t refuse(blink_error& why, int code, const char* format, ...) __attribute__((format(printf, 3, 4)));

}  // namespace blink
