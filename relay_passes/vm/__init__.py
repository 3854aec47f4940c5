"""Lowers calls of kernels to TVM's virtual machine: entries, memory, checks.

In: a module of calls of kernels. Out: the module from which the virtual machine's code is made.
"""
