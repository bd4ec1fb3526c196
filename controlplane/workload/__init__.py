"""Requests to run against an engine: recorded traces, a built-in generator, and the driver that feeds them."""
