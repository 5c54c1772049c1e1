"""What stands between PyTorch's own test files and this backend, and how it is taken away.

`RULES` changes the text of a file while it is read: names of backends, devices, and what torch has moved
since the file was written. `apply` changes the helpers that the files import. Every adapted file calls
`apply` in its first line, so that processes which a test spawns are adapted too.

Neither adds a test or a check. A rule that removes a check says so.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

BACKEND = os.environ.get("BACKEND", "ucc")
"""The backend that the tests name. Gloo is there for comparison, and for the replacement of gloo."""

REPLACED = os.environ.get("TORCH_UCC_REPLACE_GLOO") == "1"
"""Whether ucc makes the groups of gloo."""

MARKS = "TORCH_FILES_MARKS"
"""The environment variable that names the folder of a test: for the stacks of its processes and the marks
that they leave."""

USED = "used_ucc"
"""The file in that folder which shows that a group of ucc was made."""


@dataclass(frozen=True)
class Rule:
    files: str
    """A regular expression that matches the names of the files, without the ending."""
    pattern: str
    replacement: str
    why: str


GLOO = "test_c10d_(gloo|spawn_gloo)|test_pg_wrapper"
FUNCTIONAL = "test_functional_api|test_c10d_functional_native|test_c10d_object_collectives"
INDUCTOR = "test_inductor_collectives"
COMPILED = f"{FUNCTIONAL}|{INDUCTOR}"
ALL = ".*"

RULES = [
    # The backend.
    Rule(GLOO, r'(?<!:)"gloo"', '"ucc"', "The backend is a name in the file."),
    Rule(
        "test_pg_wrapper|test_c10d_functional_native",
        r'"nccl"',
        '"ucc"',
        "The backend is a name in the file.",
    ),
    Rule(
        FUNCTIONAL,
        r"(?m)^BACKEND = dist\.Backend\.NCCL if .*$",
        'BACKEND = "ucc"',
        "The file chooses nccl or gloo.",
    ),
    Rule(
        FUNCTIONAL,
        r'os\.environ\["BACKEND"\] = dist\.Backend\.NCCL',
        'os.environ["BACKEND"] = "ucc"',
        "The file chooses nccl.",
    ),
    Rule(
        "test_c10d_gloo",
        r"\n +backend = process_group\._get_backend\(device\)\n +backend\.create_device\(.*\)",
        "\n\n",
        "A device of gloo is a network interface; ucc has no such object.",
    ),
    Rule(
        "test_c10d_gloo",
        r"pg_options=self\.opts\(\)",
        "",
        "The options of a gloo group are its network interfaces and threads.",
    ),
    # The calls of c10d with several tensors of one rank, which torch.distributed has no function for.
    Rule(
        "test_c10d_gloo",
        r"= simple_multi_input_reduce_tests\(.*\)",
        "= []",
        "It removes the calls of allreduce with two tensors of a rank: ucc reduces one, as nccl does.",
    ),
    Rule(
        "test_c10d_gloo",
        r"for num_inputs_per_rank in \[1, 2\]",
        "for num_inputs_per_rank in [1]",
        "It removes the calls of allreduce with two sparse tensors of a rank.",
    ),
    Rule(
        "test_c10d_gloo",
        r"for n in \[1, 2, 3\]",
        "for n in [1]",
        "It removes the calls of allgather with two and three tensors of a rank.",
    ),
    Rule(
        "test_c10d_gloo",
        r"(# Run with 2 input tensors\n +)num = 2",
        r"\1num = 0",
        "It removes the calls of broadcast with two tensors of a rank.",
    ),
    # What torch answers for a backend that is a plugin.
    Rule(
        "test_c10d_common",
        r"(\w+)\._get_sequence_number_for_group\(\)",
        r'\1._get_backend(torch.device("cpu"))._get_sequence_number_for_group()',
        "Torch passes the question on to its own backends only; here it is put to ucc itself.",
    ),
    Rule(
        "test_c10d_common",
        r'"cpu:ucc,cuda:ucc"',
        '"cpu:ucc,cuda:ucc,xpu:ucc,privateuseone:ucc"',
        "The plugin is registered for more devices than the ucc that is a part of torch.",
    ),
    # What torch has changed since.
    Rule(
        "test_c10d_common",
        r'RuntimeError, "Timeout"',
        'RuntimeError, "(?i)timeout"',
        "A store of torch now says 'wait timeout'.",
    ),
    Rule(
        "test_c10d_common",
        r"in dist\.Backend\.backend_list:",
        'in [each for each in dist.Backend.backend_list if each != "xccl"]:',
        "The test knows the backends that were in torch when it was written.",
    ),
    # CPU tensors where the file has a tensor on each GPU.
    Rule(ALL, r'f"cuda:\{[\w.]+\}"', '"cpu"', "The tensors are on the CPU."),
    Rule(ALL, r'"cuda:%d" % [\w.]+', '"cpu"', "The tensors are on the CPU."),
    Rule(COMPILED, r'(?<!"cpu", )(?<!== )"cuda(:0)?"', '"cpu"', "The tensors are on the CPU."),
    Rule(ALL, r"\.cuda\([\w.]*\)", ".cpu()", "The tensors are on the CPU."),
    Rule(ALL, r"torch\.device\(self\.rank\)", 'torch.device("cpu")', "The tensors are on the CPU."),
    Rule(ALL, r'device="cuda"', 'device="cpu"', "The tensors are on the CPU."),
    Rule(ALL, r"\.to\(self\.rank\)", '.to("cpu")', "The tensors are on the CPU."),
    Rule(ALL, r"\bdevice=self\.rank\b", 'device="cpu"', "The tensors are on the CPU."),
    Rule(ALL, r"torch\.cuda\.current_device\(\)", '"cpu"', "The tensors are on the CPU."),
    Rule(
        ALL,
        r"torch\.cuda\.(set_device|synchronize)\(",
        "(lambda *device: None)(",
        "A CPU is not chosen, and waits for nothing.",
    ),
    Rule(
        ALL,
        r"device_id = gpus_for_rank\(self\.world_size\)\[self\.rank\]\[0\]",
        'device_id = "cpu"',
        "The module is on the CPU.",
    ),
    Rule(
        ALL,
        r"device_ids=\[(device_id|self\.rank|device)\]",
        "device_ids=None",
        "DDP takes no device_ids for a module on the CPU.",
    ),
    Rule(COMPILED, r"(?<!def )exit_if_lt_x_gpu\(.*\)", "pass", "The tensors are on the CPU."),
    Rule(COMPILED, r"not has_triton\(\)", "False", "Inductor compiles for the CPU without Triton."),
    Rule(
        COMPILED,
        r"\brun_and_get_triton_code\b(?!,$)",
        "run_and_get_cpp_code",
        "Inductor compiles for the CPU without Triton.",
    ),
    Rule(COMPILED, r"import run_and_get_triton_code\b", "import run_and_get_cpp_code", "See above."),
    Rule(
        COMPILED,
        r"import fresh_inductor_cache, run_and_get_\w+",
        "import fresh_cache as fresh_inductor_cache, run_and_get_cpp_code",
        "Torch has renamed fresh_inductor_cache.",
    ),
    Rule(
        INDUCTOR,
        r"_dynamo_dist_per_rank_init\(\s*self\.rank, self\.world_size",
        r'\g<0>, backend="ucc"',
        "The helper chooses the backend by the accelerator.",
    ),
    # What the file wants from elsewhere.
    Rule(
        "test_c10d_functional_native",
        r'AOTIRunnerUtil = load_test_module\("[\w.]+"\)\.AOTIRunnerUtil',
        "AOTIRunnerUtil = None",
        "The helper is in another folder of the checkout, and its tests use no group of ucc.",
    ),
    Rule(
        "test_c10d_spawn_(ucc|gloo)",
        r"if sys\.version_info < \(3, 9\):",
        "if True:",
        "The file leaves tests out on Python 3.9 and later for an error of Python 3.9.",
    ),
    Rule("test_c10d_spawn_(ucc|gloo)", r"not TEST_MULTIGPU", "False", "The tensors are on the CPU."),
    Rule(
        "test_c10d_spawn_(ucc|gloo)",
        r"\.to\(i\)",
        '.to("cpu")',
        "The tensors are on the CPU.",
    ),
]

LIFTS = [
    # Reasons of skips that are limitations of the ucc backend which is a part of torch.
    "fails with numerical mismatch",
    "Fails on M60",
    "times out$",
    "backward pass: input tensor has to be dense",
    "requires broadcast coalesced",
    "runs into illegal memory access",
]

WORDING = r".*_checks$"
"""Tests that look for the wording of an error. Here the call must be refused with any of `REFUSALS`, in any
words, since each backend has its own. An operation that failed, as by a timeout, is no refusal."""

REFUSALS = (ValueError, TypeError, NotImplementedError, RuntimeError)


def text_of(path: Path) -> str:
    """The text of a test file, adapted. Its lines keep their numbers."""
    text = path.read_text()
    for rule in RULES:
        if re.fullmatch(rule.files, path.stem):
            text = re.sub(rule.pattern, rule.replacement, text)
    if BACKEND != "ucc":
        text = text.replace('"ucc"', f'"{BACKEND}"')
    comment = text if text.startswith("#") else f"#\n{text}"
    return f"from torch_files import adapt; adapt.apply()  {comment}"


@functools.cache
def apply() -> None:
    """Adapt the helpers that the test files import. To be called before they are imported."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_distributed, common_utils

    os.register_at_fork(after_in_child=_register_stacks)
    _register_stacks()
    _mark_use(dist)
    _stand_in_for_what_is_gone()

    # The front end of torch insists on gloo; that of this package is the same without the question.
    from torch_ucc import monitored_barrier

    skip: Callable[[str], Any] = common_utils.skip_but_pass_in_sandcastle

    def skip_unless_lifted(reason: str) -> Any:
        return _same if any(re.match(lift, reason) for lift in LIFTS) else skip(reason)

    replaced: dict[Any, dict[str, Any]] = {
        dist: {
            "ProcessGroupGloo": _Group,
            "ProcessGroupUCC": _Group,
            "ProcessGroupNCCL": _Group,
            "is_ucc_available": lambda: True,
            "monitored_barrier": monitored_barrier,
        },
        common_utils: {
            "skip_but_pass_in_sandcastle": skip_unless_lifted,
            # The decorator looks for the GPU of a test that runs on the CPU here.
            "requires_cuda": _same,
        },
        common_distributed: {
            **dict.fromkeys(("requires_gloo", "requires_ucc", "requires_nccl"), lambda: _same),
            "skip_if_lt_x_gpu": lambda *_, **__: _same,
            "skip_but_pass_in_sandcastle": skip_unless_lifted,
            "create_device": lambda **_: None,
            "MultiThreadedTestCase": _ranks_in_processes(common_distributed.MultiProcessTestCase),
        },
        common_distributed.DynamoDistributedSingleProcTestCase: {"setUpClass": classmethod(_start_alone)},
        torch.accelerator: {"set_device_index": lambda *_: None},
        common_distributed.MultiProcessTestCase: {"_spawn_processes": _fork_ranks},
        common_utils.TestCase: {"assertRaisesRegex": _raises},
    }
    for owner, names in replaced.items():
        for name, value in names.items():
            setattr(owner, name, value)
    torch.set_num_threads(1)


def _same(function: Any) -> Any:
    return function


def _fork_ranks(case: Any) -> None:
    """Forked ranks start in milliseconds; spawned ones import torch first."""
    import torch

    case._start_processes(torch.multiprocessing.get_context("fork").Process)


def _start_alone(case: Any) -> None:
    """The set-up of a class of tests that are the only rank. That of torch asks for the accelerator."""
    import torch.distributed as dist
    from torch._dynamo.test_case import TestCase

    TestCase.setUpClass.__func__(case)  # type: ignore[attr-defined]
    case.rank, case.device, case.device_ids = 0, "cpu", None
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)


def _ranks_in_processes(base: Any) -> Any:
    """A class for tests with a thread for each rank, over a backend for threads: here it is a process."""
    import torch.distributed as dist

    class MultiThreadedTestCase(base):  # type: ignore[misc]
        def _spawn_threads(self) -> None:
            self._spawn_processes()

        def run_test(self, test_name: str, parent_pipe: Any) -> None:
            store = dist.FileStore(self.file_name, self.world_size)
            dist.init_process_group(BACKEND, store=store, rank=self.rank, world_size=self.world_size)
            super().run_test(test_name, parent_pipe)

    return MultiThreadedTestCase


def _raises(case: Any, expected: Any, wording: Any, *args: Any, **kwargs: Any) -> Any:
    if re.match(WORDING, case._testMethodName):
        return _refused(case, str(wording))
    return unittest.TestCase.assertRaisesRegex(case, expected, wording, *args, **kwargs)


@contextlib.contextmanager
def _refused(case: Any, wording: str) -> Iterator[None]:
    from torch.distributed import DistBackendError

    try:
        yield
    except DistBackendError:
        raise
    except REFUSALS:
        return
    case.fail(f"The call was not refused. Gloo says: {wording}")


class _Options:
    """The options of a gloo group. Only the timeout has a meaning for ucc."""

    _timeout: float | timedelta = timedelta(seconds=50)
    _devices: Any = None
    _threads = 2


class _Group:
    """Called like `ProcessGroupGloo` and its kind, it makes an object of our backend."""

    _Options = Options = _Options
    _made = itertools.count()

    @staticmethod
    def create_device(**_: Any) -> None:
        return None

    @staticmethod
    def create_default_device() -> None:
        return None

    def __new__(cls, store: Any, rank: int, size: int, options: Any = None, *, timeout: Any = None) -> Any:
        import torch.distributed as dist

        if BACKEND == "gloo" and not REPLACED:
            made = dist.distributed_c10d.ProcessGroupGloo
            device = made.create_device(interface="lo")
            gloo = made._Options()
            gloo._devices = [device]
            return made(store, rank, size, gloo)
        limit = options._timeout if isinstance(options, _Options) else timeout or options
        group = dist.distributed_c10d._DistributedBackendOptions()  # type: ignore[attr-defined]
        group.group_id = f"made {next(cls._made)}"
        group.store = dist.PrefixStore(group.group_id, store)
        group.group_rank, group.group_size = rank, size
        group.global_ranks_in_group = []
        group.timeout = limit if isinstance(limit, timedelta) else timedelta(seconds=limit or 50)
        return dist.Backend._plugins["UCC"].creator_fn(group, None)


def _register_stacks() -> None:
    """Let the driver ask this process for its stacks."""
    from torch_ucc.testing import stacks

    if folder := os.environ.get(MARKS):
        stacks.register(Path(folder, f"{os.getpid()}.stacks"))


def _mark_use(dist: Any) -> None:
    """Leave a file where a group of ucc is made: some tests make none."""
    plugins = dist.Backend._plugins
    for name, plugin in list(plugins.items()):
        if name.lower() in ("ucc", "torch_ucc") or (REPLACED and name == "GLOO"):
            plugins[name] = plugin._replace(creator_fn=_marking(plugin.creator_fn))


def _marking(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def creator(*args: Any) -> Any:
        made = create(*args)
        if folder := os.environ.get(MARKS):
            Path(folder, USED).touch()
        return made

    return creator


def _stand_in_for_what_is_gone() -> None:
    """Modules that torch has removed since: a test that uses one is skipped."""

    def gone(*_: Any, **__: Any) -> Any:
        raise unittest.SkipTest("torch has removed CommTensor")

    try:
        __import__("torch.distributed._spmd.comm_tensor")
    except ImportError:
        for name in ("torch.distributed._spmd", "torch.distributed._spmd.comm_tensor"):
            module: Any = types.ModuleType(name)
            module.CommTensor = module._wait_comm = gone
            sys.modules[name] = module
