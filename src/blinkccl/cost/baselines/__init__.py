"""Baselines beside every algorithm of this library: NCCL 2.4 and 2.30, MPI, and a plain ring, on the same job."""
