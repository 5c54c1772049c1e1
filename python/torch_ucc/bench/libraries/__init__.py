"""The libraries that the bench measures, one module for each.

| module | what it measures | what its environment must have |
|---|---|---|
| `over_torch` | a backend of torch.distributed: ucc, gloo, fake | torch |
| `alone` | UCC and UCX in loops of C, nothing above them | torch, torch_ucc |
| `over_mpi` | the MPI that mpi4py loads: Open MPI, MPICH | numpy, mpi4py |
| `over_ucx` | UCX from Python | numpy, ucxx |

`library` says what a library must offer. Each module of the table has a function `open_library` that opens
its own. The two that do without torch share `numpy_buffers`.

`worker.py` is run by its path, and there this package is called `libraries`, since torch_ucc may not be
installed. Everywhere else it is `torch_ucc.bench.libraries`. Its modules therefore import each other by
relative names.
"""
