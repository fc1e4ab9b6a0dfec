// Reductions of NCCL's types. Operands are reduced in the order of the ranks; integers wrap, narrow floats are added in
// double and rounded once. Exact data give the same bits in every order.
#pragma once

#include <cstddef>
#include <vector>

namespace nccl_double {

std::size_t size_of(int dtype);  // 0: no such type

enum Fold { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4, kPreMulSum = 5 };

// output[i] = fold of operands[r][i]. `scales`: for kPreMulSum, one value of the type per operand.
void reduce(Fold fold, int dtype, const std::vector<const char*>& operands, const std::vector<const char*>& scales,
            char* output, std::size_t count);

}  // namespace nccl_double
