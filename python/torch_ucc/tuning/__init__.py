"""What is measured on a job's own hosts and then kept for it: `docs/tuning.md`.

`profile` is the file and how it is applied; `choices` says what there is to choose, `decisions` what a
measurement is worth, by pure functions; `turns` measures, `tuner` conducts, `__main__` is the command.
"""
