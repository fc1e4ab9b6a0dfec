"""Known optimal rates."""

#: (machine, GPUs) → optimum in lanes of broadcast, allreduce and allgather.
IN_LANES = {
    ("dgx-1v", None): ("6", "24/7", "48/7"),
    ("dgx-1v", "0,1,2,3"): ("4", "3", "16/3"),
    ("dgx-1v", "0,1,2,4,5,6"): ("4", "13/5", "24/5"),
    ("dgx-1v", "0,1,2,3,4"): ("2", "2", "5/2"),
    ("dgx-1p", None): ("4", "16/7", "32/7"),
    ("dgx-1p", "0,1,3,4,5,7"): ("3", "9/5", "18/5"),
}
#: The same in GB/s.
IN_GB_PER_S = {
    "dgx-a100": ("300", "1200/7", "2400/7"),
    "2x dgx-a100 @ 200Gbps": ("200", "520/3", "1040/3"),
    "16x dgx-a100 @ 200Gbps": (None, "320/3", "640/3"),
}
