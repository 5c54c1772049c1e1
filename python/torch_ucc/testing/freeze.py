"""Imported last by the server that ranks are forked from: what it has imported is never collected again.

A rank that collects garbage at its end would otherwise touch, and so copy, every page of the modules that it
shares with the server, which takes most of a second.
"""

import gc

gc.freeze()
