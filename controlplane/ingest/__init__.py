"""OTLP in, rows out."""
