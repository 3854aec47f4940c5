"""Features of configurations for a cost model; nothing is built to find them.

    config_features      the knobs themselves            one workload only
    loop_features        every loop of every nest        one workload only
    relation_features    bytes, caches, reuse, cycles    any workload

After the three kinds of Chen et al., arXiv 1805.08166, section 3.1 and 4.
"""
