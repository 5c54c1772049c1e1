"""vLLM, tensor parallelism on two simulated hosts with one rank each.

The ranks start in the same way as with `vllm serve --nnodes 2`. The program changes nothing in vLLM, because
vLLM uses its groups to exchange tensors between hosts. Where simulated hosts are not allowed, the program
ends with status 77, and the last line that it prints says why.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import problem
from torch_ucc.testing.hosts import Hosts, hosts, why_not

SKIPPED = 77
HOSTS = 2
PORT = 29500  # free on a host that is new
HOST = "TRAIN_VLLM_HOST"  # in the environment of a process on a host: the number of the host


def on_host(host: int, parallel: dict[str, int]) -> None:
    """What `vllm serve` would be on this host: host 0 generates, and host 1 keeps a worker for it."""
    import small_vllm
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    with tempfile.TemporaryDirectory() as folder:
        small_vllm.save_model(Path(folder))
        options = small_vllm.options(
            Path(folder),
            distributed_executor_backend="mp",
            nnodes=HOSTS,
            node_rank=host,
            master_addr=os.environ["MASTER_ADDR"],
            master_port=PORT,
            **parallel,
        )
        if host:
            config = EngineArgs(**options).create_engine_config(headless=True)
            MultiprocExecutor(config, monitor_workers=False).start_worker_monitor(inline=True)
            return
        model = LLM(**options)
        results = small_vllm.generate(model)
        makers = set(model.collective_rpc(small_vllm.makers_of_worker))
        backend, result = problem.arguments()
        problem.write(result, [], results, backend, ",".join(sorted(makers)), HOSTS)


def run_on(made: Hosts) -> int:
    """Run this program on each host until it ends on host 0, and return its status there."""
    _, result = problem.arguments()  # with an absolute path: a process on a host starts in its root folder
    processes = []
    for host in range(len(made)):
        own = {
            HOST: str(host),
            "MASTER_ADDR": made.address(0),
            "VLLM_HOST_IP": made.address(host),
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        command = [*made.at(host), sys.executable, str(Path(sys.argv[0]).resolve()), sys.argv[1], str(result)]
        processes.append(subprocess.Popen(command, env={**os.environ, **own}, stdin=subprocess.DEVNULL))
    head, other = processes
    try:
        while head.poll() is None and other.poll() is None:
            time.sleep(0.1)
        # When host 0 ends, its connections close first, and host 1 may then end before it.
        return head.wait(timeout=30)
    finally:
        for each in processes:
            each.kill()
            each.wait()


def main(**parallel: int) -> int:
    """`parallel`: arguments of `LLM`, such as `tensor_parallel_size`."""
    problem.arguments()
    if HOST in os.environ:
        on_host(int(os.environ[HOST]), parallel)
        return 0
    if reason := why_not():
        print(reason, file=sys.stderr)
        return SKIPPED
    with hosts(HOSTS) as made:
        return run_on(made)


if __name__ == "__main__":
    sys.exit(main(tensor_parallel_size=2))
