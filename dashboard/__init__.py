"""The dashboard: a reader of the store with buttons that go through the control plane's API."""
