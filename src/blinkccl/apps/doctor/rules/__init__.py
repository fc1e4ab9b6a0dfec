"""Rules: pure functions from evidence to findings, one file per family."""
