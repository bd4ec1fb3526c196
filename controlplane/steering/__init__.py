"""Desired state, commands, policies, alerts, and the scheduler that runs them."""
