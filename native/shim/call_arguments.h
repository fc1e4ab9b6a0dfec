// A call's arguments: its row of the plan, and the form that generated code takes. Everything is a function of the plan
// and of arguments that are equal on all ranks, never of pointers or times, which may differ.
#pragma once

#include <cstddef>
#include <cstdint>

#include "blink/call.h"
#include "bundle.h"
#include "driver.h"
#include "nccl_types.h"

namespace blink::shim {

// The factor of a premul_sum.
struct PremulSum {
  int dtype = 0;
  const void* at = nullptr;  // on the device
  Word bits = 0;             // if `at` is null: an element of type `dtype`
};

// One call of a collective, or one end of a message. For a message `root` is the peer, and the memory is `send` or
// `recv`. Sizes are in elements, `count` as in nccl.h.
struct Operation {
  Collective collective = Collective::kAllReduce;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  int dtype = 0;           // ncclDataType_t
  int op = 0;              // ncclRedOp_t; kPremulSum with `scalar`
  int root = -1;           // −1: the collective has none
  CUstream stream = nullptr;
  PremulSum scalar = {};
};

// Bytes of an element; 0 for a type that NCCL does not have.
std::size_t size_of(int dtype);

bool reduces(Collective collective);

// S, the size that nccl-tests prints.
std::uint64_t total_bytes(Collective collective, std::size_t count, int dtype, int nranks);

// The plan's choice for this call; nullptr if it has none.
const Bundle::Choice* choice_of(const Bundle& bundle, Collective collective, int root, std::uint64_t bytes);

// The split of a message between two ranks, by its bytes; nullptr if the plan has none.
const Bundle::Split* split_of(const Bundle& bundle, int src, int dst, std::uint64_t bytes);

// Type, operation, scalar and sizes in the form that generated code takes.
Call call_of(const Operation& operation);

const char* type_name(int dtype);
const char* operation_name(int op);

}  // namespace blink::shim
