// A call's arguments: which row of the plan it falls under, and how generated code wants them. All of it is a function
// of the plan and of what all ranks pass alike; never of pointers, times or anything else that may differ between them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "blink/call.h"
#include "bundle.h"
#include "driver.h"
#include "nccl_types.h"

namespace blink::shim {

// What a premul_sum multiplies with.
struct PremulSum {
  int dtype = 0;
  const void* at = nullptr;  // on the device
  Word bits = 0;             // where that is null: an element of type `dtype`
};

// One call of a collective, as it came in, or an end of a message: its `root` is the other end, and its memory is
// `send` or `recv`. Sizes are in elements, `count` as in nccl.h.
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

// The row of the plan's choices that this call falls under; nullptr: there is none.
const Bundle::Choice* choice_of(const Bundle& bundle, Collective collective, int root, std::uint64_t bytes);

// The split of a message's size between two ranks; nullptr: there is none.
const Bundle::Split* split_of(const Bundle& bundle, int src, int dst, std::uint64_t bytes);

// Type, operation, scalar and sizes as generated code wants them.
Call call_of(const Operation& operation);

const char* type_name(int dtype);
const char* operation_name(int op);

}  // namespace blink::shim
