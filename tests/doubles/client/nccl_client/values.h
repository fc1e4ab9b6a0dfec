// The numbers that travel, and what must come out. Small whole numbers, chosen so that every order of a reduction, and
// every rounding on the way, gives the same bits.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "../nccl_abi.h"

size_t bytes_of(ncclDataType_t type);
void encode(ncclDataType_t type, long value, void* out);  // whole numbers that the type has; integers wrap

// Element `i` of what rank `rank` contributes to a reduction with `op` over `ranks`.
long operand(ncclDataType_t type, ncclRedOp_t op, int ranks, int rank, size_t i);
long reduced(ncclDataType_t type, ncclRedOp_t op, int ranks, size_t i);
bool is_exact(ncclDataType_t type, ncclRedOp_t op, int ranks);

// Element `i` of what rank `rank` sends where nothing is reduced.
long datum(ncclDataType_t type, int rank, size_t i);
