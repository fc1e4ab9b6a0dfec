"""Which of an NCCL program's calls run on trees, and how? libblink.so asks once per communicator: ``planner.py``."""
