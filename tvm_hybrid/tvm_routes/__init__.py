"""The ways into the compiler that users of TVM know.

In: a Relax module or a TIR function. Out: a partitioned or tensorized module, by BYOC partitioning,
a named pipeline, dlight rules, or a MetaSchedule space.
"""
