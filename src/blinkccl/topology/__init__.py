"""Topologies: machines by name, by rule, from files, or the present machine.

Start at :func:`blinkccl.topology.spec.load`; the types are in :mod:`blinkccl.topology.model`.
"""
