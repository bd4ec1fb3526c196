"""Measurements, one command each; every one prints a table and, on request, JSON. Never part of the tests."""
