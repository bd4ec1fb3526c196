"""Commands as an engine takes them: `execute.py` runs one, a module for each family of kinds does the work."""
