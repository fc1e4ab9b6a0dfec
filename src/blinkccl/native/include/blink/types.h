// The numbers of collectives, element types and operations; blinkccl/collectives defines their meaning. The numbers
// never change.
#ifndef BLINK_TYPES_H
#define BLINK_TYPES_H

enum blink_collective {
  BLINK_BROADCAST, BLINK_REDUCE, BLINK_ALLREDUCE, BLINK_ALLGATHER, BLINK_REDUCE_SCATTER, BLINK_GATHER, BLINK_SCATTER,
  BLINK_ALLTOALL, BLINK_SENDRECV,
};

enum blink_dtype {
  BLINK_INT8, BLINK_UINT8, BLINK_INT16, BLINK_UINT16, BLINK_INT32, BLINK_UINT32, BLINK_INT64, BLINK_UINT64,
  BLINK_FLOAT16, BLINK_BFLOAT16, BLINK_FLOAT32, BLINK_FLOAT64, BLINK_FLOAT8_E4M3FN, BLINK_FLOAT8_E5M2, BLINK_BOOL,
};

// Operations that reduce two elements to one.
enum blink_operation { BLINK_SUM, BLINK_PROD, BLINK_MIN, BLINK_MAX, BLINK_BAND, BLINK_BOR, BLINK_BXOR };
// Flags on an operation: the result is divided by the number of contributions; or each contribution is scaled first.
#define BLINK_AVERAGES 16
#define BLINK_SCALES 32

// NCCL's numbers (nccl.h), for the types and operations that NCCL has.
enum blink_nccl_dtype {
  BLINK_NCCL_INT8, BLINK_NCCL_UINT8, BLINK_NCCL_INT32, BLINK_NCCL_UINT32, BLINK_NCCL_INT64, BLINK_NCCL_UINT64,
  BLINK_NCCL_FLOAT16, BLINK_NCCL_FLOAT32, BLINK_NCCL_FLOAT64, BLINK_NCCL_BFLOAT16, BLINK_NCCL_FLOAT8_E4M3FN,
  BLINK_NCCL_FLOAT8_E5M2,
};
// Numbers from premul_sum on are the operations that were created with a scale.
enum blink_nccl_op {
  BLINK_NCCL_SUM, BLINK_NCCL_PROD, BLINK_NCCL_MAX, BLINK_NCCL_MIN, BLINK_NCCL_AVG, BLINK_NCCL_PREMUL_SUM,
};

#endif
