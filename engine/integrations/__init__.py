"""Bridges between the engine and what computes prefix state: a synthetic model here, real ones beside it."""
