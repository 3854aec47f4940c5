"""What maintainers run: fits of polynomials, measurements of their errors. Not installed."""
