"""What would others do with the same job? NCCL 2.4 and 2.30, MPI, and every algorithm of ours, beside each other."""
