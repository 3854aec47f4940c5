"""Lowers by TVM what no template takes: writes its operators as kernels, fuses and schedules them.

In: a module in which regions are kernels and all else is operators. Out: calls of kernels only.
"""
