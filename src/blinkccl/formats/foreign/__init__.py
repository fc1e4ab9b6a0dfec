"""Plans for MSCCL++ from any author: reader, execution, and proof of the collective in any order of execution."""
