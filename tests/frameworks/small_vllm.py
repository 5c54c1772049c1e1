"""A small Llama with random weights, and what the programs for vLLM here do with it.

vLLM reads its settings from the environment when it is imported, so import this module before vllm.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # no process of its own for the scheduler
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # the default wants a NUMA node for each rank
os.environ["VLLM_NO_USAGE_STATS"] = "1"

import problem
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.distributed.parallel_state import get_pp_group, get_tp_group

if TYPE_CHECKING:
    import torch.distributed as dist

PROMPTS = 4
LENGTH = 8
NEW_TOKENS = 24
MODEL = LlamaConfig(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    initializer_range=0.2,  # wide, so that each layer has a part in which token comes next
    dtype="float32",
)


def save_model(folder: Path, model: LlamaConfig = MODEL) -> None:
    """Write random weights to the folder. They have the same bits on every rank."""
    torch.manual_seed(0)
    LlamaForCausalLM(model).save_pretrained(folder)


def options(folder: Path, **more: Any) -> dict[str, Any]:
    """Arguments of `LLM` for the model in the folder, on ranks that torchrun starts.

    `more` has further arguments, which replace those here.
    """
    return {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "seed": 0,
        "max_model_len": 64,
        "kv_cache_memory_bytes": 2**26,
        "distributed_executor_backend": "external_launcher",
        # On CPUs, eager pipeline parallelism ends with an AssertionError in vLLM 0.32: vLLM allocates the
        # tensors that a rank receives while it compiles the model.
        "enforce_eager": more.get("pipeline_parallel_size", 1) == 1,
        "enable_prefix_caching": False,
        **more,
    }


def prompts(count: int, vocabulary: int) -> list[dict[str, list[int]]]:
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(vocabulary, (count, LENGTH), generator=random)
    return [{"prompt_token_ids": each} for each in tokens.tolist()]


def generate(model: LLM) -> dict[str, torch.Tensor]:
    """The tokens of each prompt and their log-probabilities, which compare.py compares like weights."""
    greedy = SamplingParams(
        temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0, detokenize=False
    )
    results = {}
    for number, output in enumerate(model.generate(prompts(PROMPTS, MODEL.vocab_size), greedy)):
        tokens = [*output.outputs[0].token_ids]
        results[f"tokens of prompt {number}"] = torch.tensor(tokens)
        results[f"log-probabilities of prompt {number}"] = torch.tensor(
            [at[token].logprob for token, at in zip(tokens, output.outputs[0].logprobs, strict=True)]
        )
    return results


def turn_kernel_off() -> None:
    """Make vLLM exchange tensors through the group in this process, as it does between hosts.

    On one host, vLLM exchanges tensors between CPUs through shared memory of its own, and no setting of vLLM
    changes this. Every rank must call this function before it makes an `LLM`.
    """
    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda _: False


def makers() -> str:
    """What makes the groups of this rank, those of one rank excepted: one class, or several with commas.

    Raises if vLLM goes around a group, through shared memory of its own.
    """
    found = set()
    for coordinator in (get_tp_group(), get_pp_group()):
        if coordinator.world_size == 1:
            continue
        carrier = coordinator.device_communicator.dist_module
        if carrier is not torch.distributed:
            raise RuntimeError(f"{coordinator.unique_name} goes through {type(carrier).__name__}")
        groups: tuple[dist.ProcessGroup, ...] = (coordinator.device_group, coordinator.cpu_group)
        found |= {problem.made_by(group) for group in groups}
    return ",".join(sorted(found))


def makers_of_worker(worker: Any) -> str:
    """`makers` for `LLM.collective_rpc`, which passes the worker of the rank."""
    return makers()


def infer_on_this_rank(**parallel: int) -> None:
    """The whole program of a rank that torchrun starts. `parallel`: arguments of `LLM`, such as
    `tensor_parallel_size`."""

    backend, result = problem.arguments()
    turn_kernel_off()
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        model = LLM(**options(Path(folder), **parallel))
        results = generate(model)
    if int(os.environ["RANK"]) == 0:
        problem.write(result, [], results, backend, makers(), int(os.environ["WORLD_SIZE"]))
