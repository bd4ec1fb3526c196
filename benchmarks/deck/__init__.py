"""Parts of `benchmarks.controlplane`: databases, telemetry as engines send it, seeding, and one file a part."""
