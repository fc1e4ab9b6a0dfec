"""What should they do? Which GPUs to ask for, what NCCL would get, why a plan is chosen, and whether it is true."""
