"""Tests of the recorders."""
