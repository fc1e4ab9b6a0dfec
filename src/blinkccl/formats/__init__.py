"""Programs in the formats of other tools, and plans of MSCCL++ as a reader and a judge see them (``foreign``)."""
