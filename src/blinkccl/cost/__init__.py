"""The simulator (``simulate``), what others do with the same job (``baselines``), and which plan runs (``choice``)."""
