"""What the numbers mean: what other caps would do, why a request missed, what is wrong with an engine."""
