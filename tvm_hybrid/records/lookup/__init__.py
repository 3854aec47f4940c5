"""What compilation asks: the best known configuration of a region, the best layouts of a block,
the best arrangement of a contraction.

In: the user's records, then those that the package ships (`shipped/CPU.jsonl`). Out: a
configuration that was measured for this region, one borrowed from a region like it, or none.
"""
