"""Standing rules: they propose from frozen facts, and an applier applies."""
