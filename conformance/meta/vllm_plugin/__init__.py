"""Tests of the plug-in that need no vLLM."""
