"""What does a Python program type? The verbs of the command line as functions, whose results are objects.

The command line parses, calls these, and prints: what a plan is and says, is decided here for both.
"""
