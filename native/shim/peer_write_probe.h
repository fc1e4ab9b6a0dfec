// Checks before the first call that a rank's stores into its peers' memory arrive, through the mappings that kernels
// use: IOMMUs and PCIe access control have been observed to lose such stores silently.
//
// Each end of a connection raises a counter in the other end's memory. It writes a probe behind this counter, in an
// unused part of the line, and the other rank checks it. Nothing reads these bytes afterwards.
//
// Copies write the probes, not a kernel. A store is lost because of its address, which is the same for both. LL128 also
// needs lines of 128 bytes to arrive whole, but only a reader during the write could see that, never a probe that is
// read afterwards. And a kernel would be one more entry in the code of every plan and architecture.
#pragma once

#include <string>
#include <vector>

#include "bundle.h"
#include "driver.h"

namespace blink::shim {

class PeerWriteProbe {
 public:
  static constexpr std::size_t kProbeBytes = 64;

  // `segments`: those of the ranks that connections lead to, as mapped by this rank. `scratch`: memory of this rank for
  // bundle.connections.size() probes. The methods only enqueue copies, and return the driver's result.
  PeerWriteProbe(const Driver& driver, const Bundle& bundle, int rank, const std::vector<CUdeviceptr>& segments,
           CUdeviceptr scratch);

  CUresult write(CUstream stream) const;
  // After all ranks' write() has completed: copies the arrived probes to `scratch`.
  CUresult gather(CUstream stream) const;
  // After gather() has completed: the ranks with missing probes, without duplicates.
  CUresult missing(CUstream stream, std::vector<int>* ranks) const;

 private:
  struct Probe {
    int from;        // the writing rank
    CUdeviceptr at;  // as mapped by this rank
    std::string text;
  };

  CUdeviceptr scratch(std::size_t index) const { return scratch_ + index * kProbeBytes; }

  const Driver& driver_;
  const CUdeviceptr scratch_;
  std::vector<Probe> mine_, theirs_;  // one of each per connection of this rank
  std::string texts_;  // of mine_; the GPU may read them until write() has completed
};

}  // namespace blink::shim
