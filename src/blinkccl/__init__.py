"""Blink: collective communication planned from the links a job really has."""
