#include "call_arguments.h"

#include <cmath>
#include <cstring>

namespace blink::shim {
namespace {

struct TypeRow {
  const char* name;
  std::uint32_t code;  // of blink_dtype
};
constexpr TypeRow kTypes[kDataTypes] = {
    {"int8", BLINK_INT8},         {"uint8", BLINK_UINT8},
    {"int32", BLINK_INT32},       {"uint32", BLINK_UINT32},
    {"int64", BLINK_INT64},       {"uint64", BLINK_UINT64},
    {"float16", BLINK_FLOAT16},   {"float32", BLINK_FLOAT32},
    {"float64", BLINK_FLOAT64},   {"bfloat16", BLINK_BFLOAT16},
    {"float8_e4m3fn", BLINK_FLOAT8_E4M3FN}, {"float8_e5m2", BLINK_FLOAT8_E5M2},
};

// NCCL's order is sum, prod, max, min, avg; blink_operation has min before max.
constexpr std::uint32_t kOpCodes[kRedOps] = {BLINK_SUM, BLINK_PROD, BLINK_MAX, BLINK_MIN, BLINK_SUM};
constexpr const char* kOpNames[kRedOps] = {"sum", "prod", "max", "min", "avg"};

// A float of few bits: sign, exponent, mantissa.
float small_float(unsigned bits, int exponent_bits, int mantissa_bits, bool infinities) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const float sign = (bits >> (exponent_bits + mantissa_bits)) & 1 ? -1.0f : 1.0f;
  const int top = (1 << exponent_bits) - 1;
  if (exponent == top && (infinities || mantissa == (1u << mantissa_bits) - 1)) {
    return infinities && mantissa == 0 ? sign * INFINITY : NAN;
  }
  const float units = static_cast<float>(mantissa) + (exponent > 0 ? static_cast<float>(1u << mantissa_bits) : 0.0f);
  return sign * std::ldexp(units, (exponent > 0 ? exponent : 1) - bias - mantissa_bits);
}

}  // namespace

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

bool rooted(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

std::uint64_t total_bytes(Collective collective, std::size_t count, int dtype, int nranks) {
  const bool whole = collective == Collective::kBroadcast || collective == Collective::kReduce ||
                     collective == Collective::kAllReduce;
  return static_cast<std::uint64_t>(count) * size_of(dtype) * (whole ? 1 : static_cast<std::uint64_t>(nranks));
}

const Bundle::Choice* choice_of(const Bundle& bundle, Collective collective, int root, std::uint64_t bytes) {
  for (const Bundle::Choice& row : bundle.choices) {
    const bool meant = row.collective == collective && (row.root < 0 || row.root == root);
    if (meant && row.least <= bytes && bytes <= row.most) return &row;
  }
  return nullptr;
}

Word accumulator_bits(int dtype, const unsigned char* scalar) {
  unsigned narrow = 0;
  std::memcpy(&narrow, scalar, size_of(dtype) < 4 ? size_of(dtype) : 0);
  float value = 0;
  switch (dtype) {
    case kHalf: value = small_float(narrow, 5, 10, true); break;
    case kBfloat16: value = small_float(narrow, 8, 7, true); break;
    case kFloat8E4M3: value = small_float(narrow, 4, 3, false); break;
    case kFloat8E5M2: value = small_float(narrow, 5, 2, true); break;
    default: {
      Word bits = 0;
      std::memcpy(&bits, scalar, size_of(dtype));
      return bits;
    }
  }
  Word bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

Call call_of(const Operation& operation, const PremulSum* scalar) {
  Call call{};
  call.input = static_cast<const char*>(operation.send);
  call.output = static_cast<char*>(operation.recv);
  call.count = operation.count;
  call.dtype = kTypes[operation.dtype].code;
  if (!reduces(operation.collective)) return call;
  if (scalar != nullptr) {
    call.scale_kind = scalar->stored ? kScaleStored : kScaleGiven;
    call.scale_at = static_cast<const char*>(scalar->at);
    if (!scalar->stored) call.scale = accumulator_bits(operation.dtype, scalar->scalar);
    return call;
  }
  call.op = kOpCodes[operation.op];
  call.average = operation.op == kAvg ? 1 : 0;
  return call;
}

const char* type_name(int dtype) { return kTypes[dtype].name; }
const char* operation_name(int op) { return op < kRedOps ? kOpNames[op] : "premul_sum"; }

}  // namespace blink::shim
