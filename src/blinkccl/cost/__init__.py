"""The simulator (``simulate``), other libraries on the same job (``baselines``), and the plan to run (``choice``)."""
