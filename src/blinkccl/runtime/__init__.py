"""How do live ranks agree and go?

`environment` who am I? · `store` where do ranks leave words for each other? · `rendezvous` are all here, and do
they want the same? · `handover` how does everybody get the same memory? · `plan_cache` has this been planned
before?

Decisions are state machines without sockets or clocks (`meeting.Meeting`, `door.Doorkeeper`,
`tcp_store.Requests`); thin shells drive them. Every wait has a deadline: a reading of ``time.monotonic()``, named
``deadline``, or seconds from now, named ``…_s``.
"""
