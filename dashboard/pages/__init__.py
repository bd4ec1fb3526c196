"""One file a page; each is thin: it asks `data`, draws `charts` and calls `components`."""
