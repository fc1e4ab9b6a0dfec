"""Groups of live ranks: launch, meeting, collectives and failures.

`environment` identifies this process, rank 0 listens at a port or publishes its address in `store`, `bootstrap`
connects all ranks and reports failures, `host_group` runs collectives, and `plans` caches plans.

Every wait has a timeout: a ``time.monotonic()`` value named ``deadline``, or seconds from now named ``…_s``.
"""
