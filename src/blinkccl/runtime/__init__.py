"""How do live ranks agree and go?

`environment` says who this process is, `store` is where rank 0 publishes its address, `bootstrap` makes all ranks meet
and tells of failures, `host_group` runs collectives, `plans` knows what has been planned before.

Every wait has a deadline: a reading of ``time.monotonic()``, named ``deadline``, or seconds from now, named ``…_s``.
"""
