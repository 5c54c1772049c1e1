"""Measures collectives beside those of other libraries, in one run: ``python -m torch_ucc.bench --help``.

`peers` says who is measured and how its ranks are started, `cases` what is measured; `worker` and `waiting`
are the programs that the ranks run, `driver` runs them one peer at a time; `figures` turns samples into
medians and ratios, `targets` judges these, `report` prints them. `libraries` has a module for each library
that `worker` measures.
"""
