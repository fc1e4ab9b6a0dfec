"""Logs of nccl-tests 1.0, 2.0 and 2.17: two ranks and two sizes."""

V2_0 = """\
$ ./build/all_reduce_perf -b 64K -e 1M -f 16 -g 2
# nThread 1 nGpus 2 minBytes 65536 maxBytes 1048576 step: 16(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid   9212 on      node1 device  0 [0x06] Tesla V100-SXM2-16GB
#   Rank  1 Pid   9212 on      node1 device  1 [0x07] Tesla V100-SXM2-16GB
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
node1:9212:9230 [0] NCCL INFO Launch mode Group/CGMD
       65536         16384   float     sum    23.78    2.76    2.76  0e+00    24.00    2.73    2.73  2e-07
     1048576        262144   float     sum    66.99   15.65   15.65  0e+00    67.10   15.63   15.63  2e-07
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 9.19
"""
V2_17 = """\
# nccl-tests version 2.17.1 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 65536 maxBytes 1048576 step: 16(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid  18083 on      node1 device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  18083 on      node1 device  1 [0000:2a:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
       65536         16384     float     sum      -1    23.78    2.76    2.76       0    24.00    2.73    2.73       0
     1048576        262144     float     sum      -1    66.99   15.65   15.65       0    67.10   15.63   15.63       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 9.19
#
# Collective test concluded: all_reduce_perf
"""
V1_0 = """\
./build/all_reduce_perf
# NCCL Tests compiled with NCCL 2.0
# Using devices
#   Rank  0 on      node1 device  0 [0x06] Tesla P100-SXM2-16GB
#   Rank  1 on      node1 device  1 [0x07] Tesla P100-SXM2-16GB

#                                                 out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
       65536         16384   float     sum    0.024   2.73   2.73    0e+00    0.024   2.73   2.73    0e+00
     1048576        262144   float     sum    0.067  15.65  15.65    0e+00    0.067  15.65  15.65    0e+00
"""
