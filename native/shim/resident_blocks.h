// The room on a GPU that a communicator's kernels need all at once, among all communicators of this process.
//
// Why no kernel of ours waits for a block that never starts. The blocks of a kernel wait for those of its peers, so it
// ends only when each rank's kernel is on its GPU as a whole. A communicator has one kernel at a time on a GPU, as its
// launches follow each other, and that has no more blocks than were reserved. Let M be the multiprocessors of a GPU that
// a communicator may use, which are not all in a green context or a share of MPS, and m the blocks of one kernel that
// one of them holds, both the least over all communicators here; the reservations come to at most 3/4 · M · m. A block of ours takes at most 1/m of whatever a multiprocessor has, so one that holds
// fewer than m of ours, and nothing of others, has room for one more; and there always is one, since M · m blocks are
// more than all that there may be. Others' work that waits for nobody ends, and leaves. So every kernel of ours gets
// onto its GPU as a whole, whatever else of ours is there: none keeps another from it. No order is asked of the
// program: ranks may launch kernels of several communicators, and graphs that hold them, in orders of their own.
//
// They are reserved when a communicator is made, not by its first call: all ranks have to launch as many blocks as all of
// them found room for, so they have to agree. A call cannot wait for that: inside of a group, or for a rank's call in a
// thread that has other ranks to call, it would wait for what comes behind it.
//
// The last quarter is for NCCL's kernels, which wait, too, and are not counted here; and where several processes have
// ranks on one GPU, each of them counts its own.
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
    std::uint32_t multiprocessors, each;  // that it may use; blocks of these kernels that one of them holds
    std::uint32_t ranks;            // of the communicator that use it
  };
  // Room for up to `wanted` blocks: for how many, at least one of each of `channels`; or 0 and `why`. An eighth of a
  // GPU for one communicator, where a block of each channel needs no more: six find room.
  std::uint32_t reserve(const Gpu& gpu, std::uint32_t channels, std::uint32_t wanted, std::string* why);
  // So many are enough: others may have the rest.
  void keep(std::uint32_t blocks);

 private:
  int device_ = 0;
  std::uint32_t blocks_ = 0;
};

}  // namespace blink::shim
