// The roles of a program for copy engines, and their levels in its trees: these decide which streams are reused, and in
// which order work is enqueued.
//
// A role's level is the longest way of its data: 0 where nothing is received, else one more than the highest level of
// those who send to it, and of those of its channel that read the own data before it writes there, in place.
//
// Work is enqueued by chunk, then level. So every wait is for something that comes earlier in one order that all ranks
// share: a message comes from a lower level of the same chunk, a free slot from an earlier chunk. Therefore streams
// cannot block each other in a circle, however many of them the GPU puts into one of its queues.
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
  std::size_t slice = 0;                       // the first of the channel's that is the same
  bool reads = false, keeps = false;           // own data of the slice; its place in the output
};

// This rank's roles, by row. False and `why`: the program has a connection that two roles use, messages that go in a
// circle, or more operands than a kernel takes.
bool survey(const Bundle& bundle, const device::ProgramRows& program, int rank, std::vector<CopyRole>* roles,
            std::string* why);

}  // namespace blink::shim
