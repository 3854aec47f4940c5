"""The page that says where a model's time goes: one HTML file that needs nothing else.

`collect` makes its data from an executable, `data` writes the file; style.css and the scripts are
embedded unchanged.
"""
