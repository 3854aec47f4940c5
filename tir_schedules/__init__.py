"""Loops around microkernels: one template per kind of region."""
