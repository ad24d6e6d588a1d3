"""Data sets, one a file."""
