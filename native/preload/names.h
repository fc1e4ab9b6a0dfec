// Names of collectives, element types and operations, and element sizes, by the numbers of blink/types.h. The names are
// those of blinkccl/collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "blink/types.h"

namespace blink {

struct ElementType {
  const char* name;
  std::size_t bytes;
};
constexpr ElementType kElementTypes[] = {
    {"int8", 1},  {"uint8", 1},  {"int16", 2},   {"uint16", 2},   {"int32", 4},   {"uint32", 4},        {"int64", 8},
    {"uint64", 8}, {"float16", 2}, {"bfloat16", 2}, {"float32", 4}, {"float64", 8}, {"float8_e4m3fn", 1},
    {"float8_e5m2", 1}, {"bool", 1},
};
static_assert(std::size(kElementTypes) == BLINK_BOOL + 1, "in the order of blink_dtype");
constexpr const char* kOperationNames[] = {"sum", "prod", "min", "max", "band", "bor", "bxor"};
constexpr const char* kCollectiveNames[] = {"broadcast",      "reduce", "allreduce", "allgather",
                                            "reduce_scatter", "gather", "scatter",   "alltoall"};

inline const char* name_of_collective(std::uint32_t collective) {
  return collective < std::size(kCollectiveNames) ? kCollectiveNames[collective] : "another collective";
}
inline const char* name_of_dtype(std::uint32_t dtype) {
  return dtype < std::size(kElementTypes) ? kElementTypes[dtype].name : "another type";
}
inline const char* name_of_operation(std::uint32_t operation) {
  return operation < std::size(kOperationNames) ? kOperationNames[operation] : "another operation";
}
// Bytes of an element; 0 for an unknown type.
inline std::size_t bytes_of_element(std::uint32_t dtype) {
  return dtype < std::size(kElementTypes) ? kElementTypes[dtype].bytes : 0;
}
inline bool has_operation(std::uint32_t collective) {
  return collective == BLINK_REDUCE || collective == BLINK_ALLREDUCE || collective == BLINK_REDUCE_SCATTER;
}

}  // namespace blink
