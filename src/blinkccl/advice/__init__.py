"""What should they do? Which GPUs to ask for, what a ring would get, and whether a plan is true."""
