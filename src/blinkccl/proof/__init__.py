"""Checks of a plan file: the independent checker, and the audit that also runs the verifier."""
