"""Recordings made wrong on purpose, one node at a time; each must be noticed."""
