"""The control plane: stores what engines report, and steers them."""
