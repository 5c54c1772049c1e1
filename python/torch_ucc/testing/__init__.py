"""Tests of programs that use ucc: each rank is a process, and a hard limit ends ranks that hang.

`run_ranks` and `run_script` start ranks on this machine. `torch_ucc.testing.hosts` simulates several hosts on
one machine, and `torch_ucc.testing.stacks` shows the stacks of processes.
"""

from torch_ucc.testing.running import RankError, ScriptError, run_ranks, run_script

__all__ = ["RankError", "ScriptError", "run_ranks", "run_script"]
