// The compilation target: a GPU (BLINK_CUDA), emulated blocks of threads on this CPU (BLINK_EMULATED, from the command
// line), or this CPU with blocks of one thread. The first two run the same code, for blocks of threads (BLINK_BLOCKS).
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define BLINK_CUDA 1
#endif

#if defined(BLINK_CUDA) || defined(BLINK_EMULATED)
#define BLINK_BLOCKS 1
#endif

#ifdef BLINK_CUDA
#define BLINK_INLINE __device__ __forceinline__
#define BLINK_TABLE __device__ const
#define BLINK_OUTLINE __device__ __noinline__
#define BLINK_UNROLL _Pragma("unroll")
#define BLINK_NO_UNROLL _Pragma("unroll 1")
#else
#define BLINK_INLINE inline
#define BLINK_TABLE inline const
#define BLINK_OUTLINE inline
#define BLINK_UNROLL
#define BLINK_NO_UNROLL
#endif
