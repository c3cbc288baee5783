"""Tests of the reference, by hand-computed cases."""
