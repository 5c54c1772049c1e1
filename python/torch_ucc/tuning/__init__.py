"""Finds faster settings for a job by measuring on its hosts, and keeps them in a profile: `docs/tuning.md`.

`profile` reads, writes and applies the file. `choices` lists the candidates. `decisions` compares measured
times. `turns` measures on all ranks. `tuner` runs the whole tuning. `workload` estimates what a recorded job
would gain. `report` writes the result in words. `__main__` is the command.
"""
