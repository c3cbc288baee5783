"""Tests of the ``graphparity`` command that need no vLLM."""
