"""Tests of our own parts, which need no vLLM."""
