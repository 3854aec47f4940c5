"""Fits the polynomials of `microkernels.vector`, and measures the errors of its functions."""
