"""Alembic migrations, shipped in the wheel. `controlplane.store.migrate` runs them."""
