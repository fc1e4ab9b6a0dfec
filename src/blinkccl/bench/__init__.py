"""Benchmarks on this machine, with the flags and tables of nccl-tests."""
