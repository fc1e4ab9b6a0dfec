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

#include "blink/copy_engine.h"
#include "bundle.h"

namespace blink::shim {

// A copy entry of generated code (BLINK_COPY_ENTRY).
typedef void (*CopyEntry)(Copies* copies, std::uint32_t channel);

struct CopyRole {
  std::uint32_t rank = 0, channel = 0, ordinal = 0, level = 0;
  std::vector<std::uint32_t> receives, sends;  // connections
  std::size_t slice = 0;                       // one of the rank's, in any channel
  bool reads = false, keeps = false;           // own data of the slice; its place in the output
};

// This rank's roles by channel and ordinal: a role's place in the result is first[channel] + ordinal. False and `why`:
// the program has a connection that two roles use, messages that go in a circle, or more operands than a kernel takes.
bool survey(const Bundle& bundle, const Bundle::Program& program, int rank, CopyEntry entry,
            std::vector<CopyRole>* roles, std::vector<std::size_t>* first, std::string* why);

}  // namespace blink::shim
