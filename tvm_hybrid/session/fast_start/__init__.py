"""Fast start: a session that answers by NumPy while its program is compiled."""
