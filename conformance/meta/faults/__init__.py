"""Tests of the planted faults."""
