"""The oracle: a pure-eager model state with DeepSeek-V4.1's decode semantics.

Place: the bottom of ``conformance -> fastpath -> reference -> torch, numpy``.
Invariant: plain loops over host values, every result a new tensor, no code
shared with the fast path and no import of vLLM.
"""
