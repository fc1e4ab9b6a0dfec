// What the text is compiled for: a GPU (BLINK_CUDA), whose blocks have threads (BLINK_BLOCKS), or this CPU, where a block
// is one thread.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define BLINK_CUDA 1
#define BLINK_BLOCKS 1
#endif

#ifdef BLINK_CUDA
#define BLINK_INLINE __device__ __forceinline__
#define BLINK_OUTLINE __device__ __noinline__
#define BLINK_UNROLL _Pragma("unroll")
#define BLINK_NO_UNROLL _Pragma("unroll 1")
#else
#define BLINK_INLINE inline
#define BLINK_OUTLINE inline
#define BLINK_UNROLL
#define BLINK_NO_UNROLL
#endif
