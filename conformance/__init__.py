"""Random decode batches and histories that hold a fast path to the eager build."""

from graphparity.conformance.builder_conformance import conforms

__all__ = ["conforms"]
