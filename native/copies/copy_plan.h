// The roles of a program for copy engines, and their levels in its trees. The levels decide which streams are reused,
// and the order in which work is enqueued.
//
// A role's level is the longest path of its data. Without receives it is 0. Otherwise it is one more than the highest
// level of its senders, and of the roles of its channel that read the rank's own data before it overwrites them in
// place.
//
// Work is enqueued by chunk, then level. So every wait is for something earlier in one order that all ranks share: a
// message comes from a lower level of the same chunk, a free slot from an earlier chunk. Therefore streams cannot
// deadlock, however many of them the GPU maps to one of its queues.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blink/rows.h"
#include "bundle.h"

namespace blink::shim {

// A copy entry of generated code (BLINK_COPY_ENTRY).
typedef const device::ProgramRows* (*CopyEntry)();

struct CopyRole {
  std::uint32_t rank = 0, channel = 0, row = 0, level = 0;
  std::vector<std::uint32_t> receives, sends;  // connections
  std::size_t slice = 0;                       // the channel's first equal slice
  bool reads = false, keeps = false;           // own data of the slice; the result in the output
};

// This rank's roles, by row. False and `why` if two roles use one connection end, if the messages form a cycle, or if a
// role has more operands than a kernel can reduce.
bool survey(const Bundle& bundle, const device::ProgramRows& program, int rank, std::vector<CopyRole>* roles,
            std::string* why);

}  // namespace blink::shim
