// The kernels for x86-64 with AVX2 and F16C; compile with -mavx2 -mf16c.
#include "formats.h"
#include "kernels_blocks.h"

#if !defined(__AVX2__) || !defined(__F16C__)
#error "compile this file with -mavx2 -mf16c"
#endif

#define BLINK_LEVEL avx2
#include "kernels_body.inc"
