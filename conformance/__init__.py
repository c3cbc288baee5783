"""Random decode batches and histories that hold a fast path to the eager build."""
