// The kernels for any CPU of this architecture: SSE2 on x86-64, NEON on AArch64. No extra compiler flags are needed.
#include "formats.h"
#include "kernels_blocks.h"

#define BLINK_LEVEL base
#include "kernels_body.inc"
