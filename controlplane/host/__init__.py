"""The control plane's hands in the inference process: the agent, and the export of spans and metrics."""
