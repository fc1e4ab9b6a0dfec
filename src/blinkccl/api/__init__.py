"""The Python API: the verbs of the command line as functions that return objects.

The command line parses, calls these functions, and prints their results.
"""
