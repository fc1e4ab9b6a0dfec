"""Applications: they use the core, and neither the core nor another application imports them."""
