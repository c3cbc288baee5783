"""Evidence that a metadata build may be recorded, gathered without knowing its name."""
