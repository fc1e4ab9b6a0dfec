// The kernels for x86-64 with AVX-512 F, BW, VL and DQ; compile with
// -mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c.
#include "formats.h"
#include "kernels_blocks.h"

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || !defined(__AVX512DQ__) || \
    !defined(__F16C__)
#error "compile this file with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c"
#endif

#define BLINK_LEVEL avx512
#include "kernels_body.inc"
