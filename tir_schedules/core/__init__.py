"""What every template is made of: regions, configurations, machines, cuts of work.

In: the description of a region. Out: what the rooms of the templates share to build its kernel.
"""
