"""For tests of programs that use ucc: ranks that are real processes, under a hard limit.

`run_ranks` and `run_script` start them on this machine; `torch_ucc.testing.hosts` has hosts for several on
one machine, and `torch_ucc.testing.stacks` shows where processes stand.
"""

from torch_ucc.testing.running import RankError, ScriptError, run_ranks, run_script

__all__ = ["RankError", "ScriptError", "run_ranks", "run_script"]
