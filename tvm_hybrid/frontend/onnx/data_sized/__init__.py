"""Operators whose results' sizes depend on data, and what reads such results.

A kernel computes results of the largest size that is possible, and counts. The count becomes a
symbolic size, `R.match_cast(R.tensor_to_shape(count), R.Shape([n]))`, to which results are cut and
in terms of which TVM types and compiles what comes behind. All of it runs in TVM's C++ runtime.
"""
