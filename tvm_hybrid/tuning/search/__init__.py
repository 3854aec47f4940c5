"""Which configuration to measure next.

In: the space of a region's configurations, and what was measured so far. Out: the next candidates.
`strategies` holds the searches but that by a model (`model_search`); `feature_table` describes
configurations to the cost model.
"""
