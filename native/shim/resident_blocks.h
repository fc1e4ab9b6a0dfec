// The blocks on a GPU that must be resident at the same time, for all communicators of this process.
//
// Claim: no kernel of Blink waits for a block that never starts. The blocks of a kernel wait for those of its peers, so
// it ends only if each rank's kernel is resident as a whole. A communicator has one kernel at a time on a GPU, since
// its launches follow each other, with at most as many blocks as it reserved. Let M be the multiprocessors of the GPU
// that a communicator may use (not all in a green context or an MPS share). Let m be the blocks of one kernel that fit
// on one of them. Both are the least over all communicators of the process. The reservations total at most 3/4 · M · m.
// A block takes at most 1/m of every resource of a multiprocessor. So a multiprocessor with fewer than m of Blink's
// blocks, and no others, has room for one more. Such a multiprocessor always exists, since M · m exceeds the number of
// blocks. Other work that waits for no peer ends and leaves. So every kernel becomes resident as a whole, and none
// keeps out another. The program needs no common order: ranks may launch kernels of several communicators, and graphs
// of them, in orders of their own.
//
// Blocks are reserved when a communicator is created, not by its first call. All ranks launch the same number of
// blocks, so they must agree on it, and a call cannot wait for that: within a group, or in a thread that calls for
// several ranks, it would wait for a later call.
//
// The last quarter is left to NCCL's kernels, which also wait and are not counted here. If several processes have ranks
// on one GPU, each counts only its own.
#pragma once

#include <cstdint>
#include <string>

namespace blink::shim {

class ResidentBlocks {
 public:
  ResidentBlocks() = default;
  ~ResidentBlocks() { keep(0); }
  ResidentBlocks(const ResidentBlocks&) = delete;
  ResidentBlocks& operator=(const ResidentBlocks&) = delete;

  struct Gpu {
    int device;                     // its ordinal
    std::uint32_t multiprocessors, each;  // the usable number; blocks of these kernels per multiprocessor
    std::uint32_t ranks;            // of the communicator on this GPU
  };
  // Reserves up to `wanted` blocks, at least one per channel, and returns the number; or 0 and `why`. One communicator
  // gets an eighth of a GPU unless its channels need more, so six communicators fit.
  std::uint32_t reserve(const Gpu& gpu, std::uint32_t channels, std::uint32_t wanted, std::string* why);
  // Keeps this many blocks and releases the rest.
  void keep(std::uint32_t blocks);

 private:
  int device_ = 0;
  std::uint32_t blocks_ = 0;
};

}  // namespace blink::shim
