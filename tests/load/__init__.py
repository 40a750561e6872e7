"""Trials of size, run with LOAD=1."""
