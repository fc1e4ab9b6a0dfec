// What do the ranks of a communicator tell each other while it lives? One shared page that all of them map: who is
// done with whose memory, whether somebody gave up, and which chunk size is in force from which call on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace blink::shim {

// Chunk sizes are searched for so many (collective, size class) pairs at once.
constexpr int kSearches = 256;

class SharedPage {
 public:
  virtual ~SharedPage() = default;

  // A new page as a memory file without a name; its descriptor is to be shared by Meeting::share_descriptor.
  static int create(int nranks, std::string* why);
  // Maps it; takes the descriptor.
  static std::unique_ptr<SharedPage> map(int descriptor, int nranks, int rank, std::string* why);

  // Abort: anybody may raise it, everybody sees it. The word can be registered with the GPU, whose kernels poll it.
  virtual volatile std::uint32_t* abort_word() = 0;
  // The part with the abort word as memory for cuMemHostRegister: address and size, whole pages. The rest is not shown.
  virtual void* memory() = 0;
  virtual std::size_t bytes() const = 0;

  // This rank writes into nobody's memory any more / all ranks have said so.
  virtual void done() = 0;
  virtual bool all_done() const = 0;
  // This rank has no peer's memory mapped any more / all ranks have said so: now memory may be freed.
  virtual void closed() = 0;
  virtual bool all_closed() const = 0;

  // --- one chunk size for all ranks -------------------------------------------------------------------------------
  // Call number `call` (0, 1, 2, … the same on all ranks) of search `slot`: the chunk to use, `initial` until rank 0
  // has decided otherwise. The same answer on every rank for the same call, however far apart ranks make their calls;
  // a rank's own calls only go forward, one at a time. Never waits for another rank's call; at most for the few
  // instructions between a proposal of rank 0 and its verdict, and no longer than a second: then `initial` is never
  // used, false is returned and the caller must give up the communicator (rank 0 died there).
  virtual bool chunk_for(int slot, std::uint64_t call, std::uint64_t initial, std::uint64_t* chunk_bytes) = 0;
  // Rank 0: from some call on that no rank has reached, use this. Returns that call; 0 if the proposal had to be
  // withdrawn because somebody was about to pass it, or if a rank is so far behind that it still needs the decision
  // before the last 63 (try again later). From one thread at a time. See agreement.h.
  virtual std::uint64_t decide(int slot, std::uint64_t chunk_bytes) = 0;
};

}  // namespace blink::shim
