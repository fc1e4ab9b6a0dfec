"""What is connected to what, how fast: machines by name, by rule, from files, or this one.

Start at :func:`blinkccl.topology.spec.load`; the types are in :mod:`blinkccl.topology.model`.
"""
