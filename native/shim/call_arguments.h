// A call's arguments: which row of the plan it falls under, and how generated code wants them. All of it is a function of
// the plan and of what all ranks pass alike; never of pointers, times or anything else that may differ between them.
#pragma once

#include <cstdint>

#include "blink/call.h"
#include "bundle.h"
#include "communicator.h"

namespace blink::shim {

bool reduces(Collective collective);
bool rooted(Collective collective);

// S, the size that nccl-tests prints.
std::uint64_t total_bytes(Collective collective, std::size_t count, int dtype, int nranks);

// The row of the plan's choices that this call falls under, or −1: NCCL's.
int choice_of(const Bundle& bundle, Collective collective, int root, std::uint64_t bytes);

// Type, operation, scalar and sizes as generated code wants them. `scalar`: of a premul_sum, else null.
Call call_of(const Operation& operation, const PremulSum* scalar);

// A premul_sum's scalar, given as an element of `dtype`, in the type that is computed with.
Word accumulator_bits(int dtype, const unsigned char* scalar);

const char* type_name(int dtype);
const char* operation_name(int op);

}  // namespace blink::shim
