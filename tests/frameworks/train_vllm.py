"""vLLM, which infers: tensor parallelism of two ranks over a small Llama with random weights.

Its groups on CPUs are of gloo, whatever the default group is. The result has the tokens of each prompt and
their log-probabilities, which take part in the comparison like weights.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# vLLM reads these when it is imported.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # torchrun has started the ranks
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
os.environ["VLLM_NO_USAGE_STATS"] = "1"

import problem
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.distributed.parallel_state import get_tp_group

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


def infer(folder: Path) -> tuple[dict[str, torch.Tensor], str]:
    """The results, and the maker of the group that the ranks of a tensor share."""
    torch.manual_seed(0)
    LlamaForCausalLM(MODEL).save_pretrained(folder)
    model = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        seed=0,
        max_model_len=64,
        kv_cache_memory_bytes=2**26,
        tensor_parallel_size=2,
        distributed_executor_backend="external_launcher",
        enforce_eager=True,
        enable_prefix_caching=False,
    )
    random = torch.Generator().manual_seed(1)
    prompts = torch.randint(MODEL.vocab_size, (PROMPTS, LENGTH), generator=random)
    greedy = SamplingParams(
        temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0, detokenize=False
    )
    results = {}
    outputs = model.generate([{"prompt_token_ids": each} for each in prompts.tolist()], greedy)
    for number, output in enumerate(outputs):
        tokens = [*output.outputs[0].token_ids]
        results[f"tokens of prompt {number}"] = torch.tensor(tokens)
        results[f"log-probabilities of prompt {number}"] = torch.tensor(
            [at[token].logprob for token, at in zip(tokens, output.outputs[0].logprobs, strict=True)]
        )
    return results, problem.made_by(get_tp_group().device_group)


def main() -> None:
    backend, result = problem.arguments()
    # As on several hosts: on one host vLLM exchanges tensors through shared memory of its own, not the group.
    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda _: False
    with tempfile.TemporaryDirectory() as folder:
        results, maker = infer(Path(folder))
    if int(os.environ["RANK"]) == 0:
        problem.write(result, [], results, backend, maker, int(os.environ["WORLD_SIZE"]))


if __name__ == "__main__":
    main()
