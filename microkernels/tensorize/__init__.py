"""Microkernels as TensorIntrins, for `sch.tensorize` in schedules that are not ours.

In: a registered microkernel. Out: a TensorIntrin that TVM knows by the microkernel's name.
"""
