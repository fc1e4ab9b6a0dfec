"""Times of the library's own code, and the choice of a plan for a job and a size.

- *A program's time* (:mod:`~blinkccl.cost.choice.costs`): kernels with Simple, LL or LL128 at the costs of NCCL's model
  for its own kernels, and copy engines. The simulator times links and hops, and
  :mod:`~blinkccl.cost.choice.block_costs` times blocks. Both libblink.so's planner (:mod:`blinkccl.nccl.choices`) and
  ``blink sim`` use this model.
- *A candidate's time* (:mod:`~blinkccl.cost.choice.timed`): the time of its fastest protocol. A protocol that cannot be
  the fastest is not simulated, so callers with ascending sizes save simulations.
- *All candidates* (:mod:`~blinkccl.cost.choice.candidates`): every algorithm in the code that runs it, beside the
  baselines.
- *The choice* (:mod:`~blinkccl.cost.choice.auto`): the fastest algorithms for a job and a size.
- *Measurements* (:mod:`blinkccl.trees.algorithms.tables`) of ``blink tune`` or ``blink lab`` replace predictions.
"""
