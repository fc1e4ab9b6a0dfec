// Reductions of NCCL's types. Operands are taken in the order of the ranks; integers wrap, narrow
// floats are added in double and rounded once. Exact data gives the same bits whatever the order.
#pragma once

#include <cstddef>
#include <vector>

namespace nccl_double {

std::size_t size_of(int dtype);  // 0: no such type

enum Fold { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4, kPreMulSum = 5 };

// output[i] = fold of operands[r][i]. `scales`: of kPreMulSum, one of the type for each operand.
void reduce(Fold fold, int dtype, const std::vector<const char*>& operands, const std::vector<const char*>& scales,
            char* output, std::size_t count);

}  // namespace nccl_double
