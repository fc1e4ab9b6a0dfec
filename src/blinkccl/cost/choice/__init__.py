"""What runs, and how long does it take? One model of our own code, and one choice for all who ask.

*A program's time* (:mod:`~blinkccl.cost.choice.costs`): kernels by Simple, LL or LL128 at the costs that NCCL's model
gives NCCL's own, and copy engines. Links and hops are the simulator's, blocks are
:mod:`~blinkccl.cost.choice.block_costs`'s. libblink.so's planner (:mod:`blinkccl.nccl.choices`) and ``blink sim`` ask
here.

*A candidate's time* (:mod:`~blinkccl.cost.choice.timed`): that of its fastest protocol. What cannot win is not
simulated, so whoever asks for rising sizes pays once where a protocol has lost.

*All candidates* (:mod:`~blinkccl.cost.choice.candidates`): every algorithm as our code runs it here, beside the
baselines.

*The choice* (:mod:`~blinkccl.cost.choice.auto`): for a job and a size, the fastest of our algorithms and who comes
next.

*Measured where there is a measurement, else predicted* (:mod:`blinkccl.trees.algorithms.tables`): what ``blink tune``
found on GPUs, or ``blink lab`` on shaped links, takes the place of predictions.
"""
