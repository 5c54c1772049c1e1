"""What a host and a job look like, what is chosen for it, and why. Nothing here needs torch, UCC or UCX.

`probe` reads one host into an `inventory`; hosts and ranks make a `job`; `plan` decides; `explain` says it in
words.
"""
