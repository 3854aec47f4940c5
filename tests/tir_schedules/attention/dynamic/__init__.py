"""Attention with dynamic sizes."""
