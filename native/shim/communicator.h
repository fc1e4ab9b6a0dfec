// What is one NCCL communicator to us? Its real handle, what its ranks agreed on, and the roads that its calls take.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "bundle.h"
#include "driver.h"
#include "meeting.h"
#include "nccl_types.h"

namespace blink::shim {

// One call of a collective, as it came in. `op` is the base operation where it is one of NCCL's, else premul_sum with
// the scalar. Sizes are in elements, `count` as in nccl.h.
struct Operation {
  Collective collective = Collective::kAllReduce;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  int dtype = 0;           // ncclDataType_t
  int op = 0;              // ncclRedOp_t as the caller gave it
  int root = -1;           // −1: the collective has none
  CUstream stream = nullptr;
};

// A premul_sum that a communicator knows, made by ncclRedOpCreatePreMulSum.
struct PremulSum {
  int dtype = 0;
  bool stored = false;             // the scalar lies on the device
  const void* at = nullptr;        // there
  unsigned char scalar[8] = {};    // else its bytes, of type `dtype`
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  // A communicator whose real handle exists or is on its way. `meeting` (may be null: then nothing is ours, for the
  // reason `why_not`) was announced before the real initialisation.
  static std::shared_ptr<Communicator> make(std::string key, std::unique_ptr<Meeting> meeting, std::string why_not);

  virtual const std::string& key() const = 0;
  virtual std::uint64_t next_child() = 0;  // numbers splits, shrinks and grows of this communicator

  // There is no NCCL to leave anything to: the plan serves all sizes, with `algorithm`, or "" for the best. Before begin().
  virtual void rely(const std::string& algorithm) = 0;
  // Why nothing is ours; empty where the trees are ready. After settle().
  virtual std::string why_not() = 0;

  // The real communicator is complete: meet, plan, load. Begins in a thread of its own; settle() waits for its end.
  // `grace_s` as in Meeting::exchange.
  virtual void begin(ncclComm_t real, int nranks, int rank, int device, double grace_s) = 0;
  virtual bool settled() const = 0;  // also true where nothing was begun
  virtual void settle() = 0;

  // Whether this call is ours: the same on all ranks. Settles first. Says once per (collective, size class, type, op)
  // what runs and why. Never true for what the real NCCL must refuse (arguments are checked first, as it does).
  virtual bool takes(const Operation& operation) = 0;
  // Enqueues it and returns; to be called in the same order on all ranks, outside of any group.
  virtual ncclResult_t enqueue(const Operation& operation) = 0;

  virtual void know(int op, const PremulSum& scalar) = 0;
  virtual void forget(int op) = 0;

  // What ncclCommGetAsyncError has to say of our own part: ncclSuccess, ncclInProgress while settling, or an error.
  virtual ncclResult_t async_error() = 0;

  virtual void abort() = 0;    // kernels that wait give up; nothing of ours is enqueued after it
  virtual void finalize() = 0; // ends our part: waits for what was enqueued, frees memory when all ranks are done with it
};

}  // namespace blink::shim
