"""Packing of trees into links (``packing``), planning algorithms (``algorithms``), and the plan itself (``forest``)."""
