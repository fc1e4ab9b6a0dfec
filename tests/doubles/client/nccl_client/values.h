// Inputs and expected results: small whole numbers, for which every order of a reduction, and every rounding in
// between, gives the same bits.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "../nccl_abi.h"

size_t bytes_of(ncclDataType_t type);
void encode(ncclDataType_t type, long value, void* out);  // whole numbers that the type can represent; integers wrap

// Element `i` of the contribution of rank `rank` to a reduction with `op` over `ranks`.
long operand(ncclDataType_t type, ncclRedOp_t op, int ranks, int rank, size_t i);
long reduced(ncclDataType_t type, ncclRedOp_t op, int ranks, size_t i);
bool is_exact(ncclDataType_t type, ncclRedOp_t op, int ranks);

// Element `i` of rank `rank`'s data in calls without reduction.
long datum(ncclDataType_t type, int rank, size_t i);
