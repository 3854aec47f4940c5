"""Tests of the page of `tvm-hybrid report`."""
