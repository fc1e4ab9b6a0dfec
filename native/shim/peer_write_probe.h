// Tries whether what a rank stores into its peers' memory arrives there, through the very mappings that kernels store
// through, before anything runs: IOMMUs and access control on PCIe have been seen to lose such stores silently.
//
// Each end of a connection writes a probe behind the counter that it raises in the other end's memory, where its line
// is empty, and that rank looks for it. Nothing reads these bytes afterwards.
//
// Copies carry it, not a kernel. What is lost is lost by its address on the way, which is the same for both. That a line
// of 128 bytes arrives whole, which LL128 needs, would show only to who reads it while it is written, never to a probe
// that is read when all have been; and a kernel would be one more entry in the code of every plan and architecture.
#pragma once

#include <string>
#include <vector>

#include "bundle.h"
#include "driver.h"

namespace blink::shim {

class PeerWriteProbe {
 public:
  static constexpr std::size_t kProbeBytes = 64;

  // `segments`: of each rank that a connection leads to, as this rank has it mapped. `scratch`: memory of this rank for
  // bundle.connections.size() probes. Both methods only enqueue copies, and return what the driver says.
  PeerWriteProbe(const Driver& driver, const Bundle& bundle, int rank, const std::vector<CUdeviceptr>& segments,
           CUdeviceptr scratch);

  CUresult write(CUstream stream) const;
  // When all ranks' write() has ended: gathers what has arrived in `scratch`.
  CUresult gather(CUstream stream) const;
  // When gather() has ended: the ranks whose probes are not there, each once.
  CUresult missing(CUstream stream, std::vector<int>* ranks) const;

 private:
  struct Probe {
    int from;        // who writes it
    CUdeviceptr at;  // as this rank has it mapped
    std::string text;
  };

  CUdeviceptr scratch(std::size_t index) const { return scratch_ + index * kProbeBytes; }

  const Driver& driver_;
  const CUdeviceptr scratch_;
  std::vector<Probe> mine_, theirs_;  // one of each per connection of this rank
  std::string texts_;  // of mine_, where the GPU may read them until write() has ended
};

}  // namespace blink::shim
