"""Which configuration to measure next.

In: the space of a region's configurations, and the measurements so far. Out: the next candidates.
`strategies` holds the plain searches, `model_search` the one guided by a cost model;
`feature_table` describes configurations to that model.
"""
