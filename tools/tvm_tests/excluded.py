"""Tests that state what TVM's own pipeline does, not what a program computes; ours may differ."""

EXCLUDED: dict[str, str] = {}
"""Name of a test, without its parameters -> why it does not count."""
