"""What follows from it? Pure functions from evidence to findings, one file per family."""
