"""Tools for maintainers: measurements, fits, checks and generated pages. Not installed."""
