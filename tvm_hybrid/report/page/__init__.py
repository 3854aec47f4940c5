"""The page that says where a model's time goes: one HTML file that needs nothing else.

`collect` makes its data of an executable, `data` the file; style.css and the scripts are put into
it as they are.
"""
