#include "call_arguments.h"

#include <iterator>

#include "names.h"

namespace blink::shim {
namespace {

// Both tables are in NCCL's order.
constexpr blink_dtype kTypes[] = {
    BLINK_INT8,    BLINK_UINT8,   BLINK_INT32,   BLINK_UINT32,   BLINK_INT64,         BLINK_UINT64,
    BLINK_FLOAT16, BLINK_FLOAT32, BLINK_FLOAT64, BLINK_BFLOAT16, BLINK_FLOAT8_E4M3FN, BLINK_FLOAT8_E5M2,
};
struct OperationRow {
  const char* name;
  std::uint32_t code;  // of blink_operation
};
constexpr OperationRow kOperations[] = {
    {"sum", BLINK_SUM}, {"prod", BLINK_PROD}, {"max", BLINK_MAX},
    {"min", BLINK_MIN}, {"avg", BLINK_SUM},   {"premul_sum", BLINK_SUM},
};

}  // namespace

std::size_t size_of(int dtype) {
  return dtype >= 0 && static_cast<std::size_t>(dtype) < std::size(kTypes) ? bytes_of_element(kTypes[dtype]) : 0;
}

bool reduces(Collective collective) { return has_operation(static_cast<std::uint32_t>(collective)); }

std::uint64_t total_bytes(Collective collective, std::size_t count, int dtype, int nranks) {
  const bool whole = is_message(collective) || collective == Collective::kBroadcast ||
                     collective == Collective::kReduce || collective == Collective::kAllReduce;
  return static_cast<std::uint64_t>(count) * size_of(dtype) * (whole ? 1 : static_cast<std::uint64_t>(nranks));
}

const Bundle::Choice* choice_of(const Bundle& bundle, Collective collective, int root, std::uint64_t bytes) {
  for (const Bundle::Choice& row : bundle.choices) {
    const bool matches = row.kind() == collective && (row.root < 0 || row.root == root);
    if (matches && row.least <= bytes && bytes <= row.most) return &row;
  }
  return nullptr;
}

const Bundle::Split* split_of(const Bundle& bundle, int src, int dst, std::uint64_t bytes) {
  for (const Bundle::Split& row : bundle.splits) {
    if (row.src == src && row.dst == dst && row.least <= bytes && bytes <= row.most) return &row;
  }
  return nullptr;
}

Call call_of(const Operation& operation) {
  Call call{};
  call.input = static_cast<const char*>(operation.send);
  call.output = static_cast<char*>(operation.recv);
  call.count = operation.count;
  call.dtype = kTypes[operation.dtype];
  if (!reduces(operation.collective)) return call;
  call.op = kOperations[operation.op].code;
  call.average = operation.op == kAvg ? 1 : 0;
  if (operation.op != kPremulSum) return call;
  call.scale_kind = operation.scalar.at != nullptr ? kScaleStored : kScaleElement;
  call.scale_at = static_cast<const char*>(operation.scalar.at);
  call.scale = operation.scalar.bits;
  return call;
}

const char* type_name(int dtype) { return name_of_dtype(kTypes[dtype]); }
const char* operation_name(int op) { return kOperations[op].name; }

}  // namespace blink::shim
