from . import cc as cc
