"""Tests of the PyTorch route."""
