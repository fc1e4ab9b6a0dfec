"""Packing trees into links (``packing``), planning with them (``algorithms``), and what a plan is (``forest``)."""
