"""Diagnosis of jobs and machines: evidence from files and this machine, findings from rules, one line to try each."""
