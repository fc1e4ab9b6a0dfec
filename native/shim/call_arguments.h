// A call's arguments: which row of the plan it falls under, and how generated code wants them. All of it is a function of
// the plan and of what all ranks pass alike; never of pointers, times or anything else that may differ between them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "blink/call.h"
#include "bundle.h"
#include "driver.h"
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

bool reduces(Collective collective);
bool rooted(Collective collective);

// S, the size that nccl-tests prints.
std::uint64_t total_bytes(Collective collective, std::size_t count, int dtype, int nranks);

// The row of the plan's choices that this call falls under; nullptr: there is none.
const Bundle::Choice* choice_of(const Bundle& bundle, Collective collective, int root, std::uint64_t bytes);

// Type, operation, scalar and sizes as generated code wants them. `scalar`: of a premul_sum, else null.
Call call_of(const Operation& operation, const PremulSum* scalar);

// A premul_sum's scalar, given as an element of `dtype`, in the type that is computed with.
Word accumulator_bits(int dtype, const unsigned char* scalar);

const char* type_name(int dtype);
const char* operation_name(int op);

}  // namespace blink::shim
