"""Planning for NCCL programs: libblink.so runs ``planner.py`` once per communicator to learn which calls use trees."""
