"""The HTTP face of the control plane (docs/reference/wire.md, sections 1 to 4)."""
