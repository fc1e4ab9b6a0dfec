// NCCL's interface as the double defines it.
#pragma once

#include "../client/nccl_abi.h"

constexpr int kUndefined = NCCL_CONFIG_UNDEF_INT;

// Internal calls of public functions use the procedure linkage table, as in the real library: the `nccl` names are weak
// aliases that a preloaded library may override.
#define NCCL_API(type, name, arguments)                                                                  \
  extern "C" __attribute__((visibility("default"))) type p##name arguments;                              \
  extern "C" __attribute__((visibility("default"), weak, alias("p" #name))) type name arguments;         \
  extern "C" type p##name arguments
