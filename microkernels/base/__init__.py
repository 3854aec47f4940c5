"""What every package uses: errors, files and folders, the log, the CPU, and TVM's private API.

In: nothing; no other package of the project is imported. Out: typed errors, files that are written
whole or not at all, the name and features of this CPU, and `tvm_compat`, the only place that uses
what TVM does not promise to keep.
"""
