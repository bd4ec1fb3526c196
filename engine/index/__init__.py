"""Layer 1: the global index."""
