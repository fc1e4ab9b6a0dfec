"""Exports of programs to the formats of other tools, and a reader and verifier of MSCCL++ plans (``foreign``)."""
