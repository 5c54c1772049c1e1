"""The libraries that the bench measures, one module for each.

| module | what it measures | what its environment must have |
|---|---|---|
| `over_torch` | a backend of torch.distributed: ucc, gloo, fake | torch |
| `alone` | UCC and UCX in loops of C, nothing above them | torch, torch_ucc |
| `floor` | collectives by slots and flags in shared memory, in loops of C | torch |
| `over_factory` | an all_reduce that the function of another program makes | torch, that program |
| `over_mpi` | the MPI that mpi4py loads: Open MPI, MPICH, Intel MPI | numpy, mpi4py |
| `over_oneccl` | oneCCL over Intel MPI | numpy, ml_dtypes, mpi4py, oneCCL |
| `over_ucx` | UCX from Python | numpy, ucxx |

`library` says what a library must offer. Each module of the table has a function `open_library` that opens
its own. The three that do without torch share `numpy_buffers`, `alone` and `floor` share
`in_c`.

`worker.py` is run by its path, and there this package is called `libraries`, since torch_ucc may not be
installed. Everywhere else it is `torch_ucc.bench.libraries`. Its modules therefore import each other by
relative names.
"""
