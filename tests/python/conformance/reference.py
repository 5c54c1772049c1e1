"""What a collective must return, computed by every rank for itself.

Each rank can make the input of every other one from its number, so no second backend is needed. Integers and
moved bytes are compared exactly. For a floating-point reduction the exact value is bounded from both sides by
the error of the roundings in the type that is reduced (float32 for narrow ones), and both bounds are rounded
once to the tensor's own type: rounding is monotonic, so a right result lies between them.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import torch
import torch.distributed as dist

PERIOD = 65521
"""Inputs repeat after this many elements: a prime, so that none looks the same when shifted by a piece."""

BOOL = (torch.bool,)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
INTEGERS = SIGNED + UNSIGNED
FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
REALS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, *FLOAT8)
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
DTYPES = BOOL + INTEGERS + REALS + COMPLEX

OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
PREMUL_FACTOR = 2.5

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def is_defined(dtype: torch.dtype, op: str) -> bool:
    """Whether the reduction means something; what does not must be refused."""
    if dtype in BOOL:
        return op not in ("AVG", "PREMUL_SUM")
    if dtype in INTEGERS:
        return op != "PREMUL_SUM"
    if dtype in REALS:
        return op not in ("BAND", "BOR", "BXOR")
    return op in ("SUM", "AVG", "PRODUCT", "PREMUL_SUM")


PAIRS = tuple(pair for pair in itertools.product(DTYPES, OPS) if is_defined(*pair))
REFUSED_PAIRS = tuple(pair for pair in itertools.product(DTYPES, OPS) if not is_defined(*pair))


def reduce_op(op: str) -> dist.ReduceOp:
    if op == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(PREMUL_FACTOR)
    return getattr(dist.ReduceOp, op)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers: comparisons see every bit, also of types that torch cannot compare."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    flat = plain.as_strided(
        (plain.numel(),), (1,)
    )  # a single element may be called contiguous with any stride
    return flat.view(_BITS[tensor.element_size()])


@functools.lru_cache(maxsize=256)
def _pool(dtype: torch.dtype, rank: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(1000 * DTYPES.index(dtype) + rank)
    if dtype in BOOL:
        return torch.randint(0, 2, (PERIOD,), generator=random, dtype=torch.uint8).bool()
    if dtype in INTEGERS:
        words = torch.randint(-(2**62), 2**62, (PERIOD,), generator=random, dtype=torch.int64)
        if dtype.itemsize == 8:
            words //= 16  # sums of a few still fit, so that an average can be exact
        if dtype is torch.uint64:
            words = words.abs()
        return words.to(dtype)
    if dtype is torch.float8_e8m0fnu:
        exponents = torch.randint(-1, 2, (PERIOD,), generator=random)
        return torch.exp2(exponents.to(torch.float32)).to(dtype)
    shape = (PERIOD, 2) if dtype in COMPLEX else (PERIOD,)
    sign = torch.randint(0, 2, shape, generator=random) * 2 - 1
    values = sign * (torch.rand(shape, generator=random, dtype=torch.float64) + 0.5)
    return torch.view_as_complex(values).to(dtype) if dtype in COMPLEX else values.to(dtype)


def tile(period: torch.Tensor, numel: int) -> torch.Tensor:
    """The first `numel` elements of the endless repetition of `period`; a copy."""
    if numel <= period.numel():
        return period[:numel].clone()
    return period.repeat(-(-numel // period.numel()))[:numel].clone()


def sample(dtype: torch.dtype, rank: int, salt: int, numel: int) -> torch.Tensor:
    """Input of `rank`, different for each `salt`."""
    pool = _pool(dtype, rank)
    start = salt * 7919 % PERIOD
    if start + numel <= PERIOD:
        return pool[start : start + numel].clone()
    return tile(torch.cat([pool[start:], pool[:start]]) if start else pool, numel)


@dataclass(frozen=True)
class Expected:
    """One period of the result: each element lies between these. If they are one, all bits are compared."""

    low: torch.Tensor
    high: torch.Tensor
    numel: int

    def wrong(self, got: torch.Tensor) -> str | None:
        """What is wrong with a result of any shape, on any device, or None."""
        got = got.detach().cpu()
        if got.numel() != self.numel:
            return f"{got.numel()} elements instead of {self.numel}"
        if self.high is self.low:
            bad = bits(got) != bits(tile(self.low, self.numel))
        else:
            value = _ordered(got)
            bad = ~(
                (value >= tile(_ordered(self.low), value.numel()))
                & (value <= tile(_ordered(self.high), value.numel()))
            )
        if not bad.any():
            return None
        first = int(bad.nonzero()[0])
        per_element = bad.numel() // self.numel  # 2 for the parts of complex numbers
        flat = got.detach().resolve_conj().resolve_neg().reshape(-1)
        at = first // per_element
        bounds = [str(each[at % each.numel()].item()) for each in (self.low, self.high)]
        counts = f"{int(bad.sum())} of {bad.numel()} wrong"
        return f"{counts}, first [{at}]: {flat[at].item()} not in [{', '.join(bounds)}]"


def _ordered(tensor: torch.Tensor) -> torch.Tensor:
    """The elements, or their parts, as a flat tensor of a type with an order; without loss."""
    plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    if plain.is_complex():
        plain = torch.view_as_real(plain).reshape(-1)
    return plain if plain.dtype is torch.float64 else plain.to(torch.float32)


def exactly(values: torch.Tensor) -> Expected:
    """For data that is only moved."""
    return Expected(values, values, values.numel())


def reduction(
    dtype: torch.dtype, op: str, ranks: list[int], salt: int, numel: int, hosts: int = 1
) -> Expected:
    """The reduction of `sample(dtype, rank, salt, numel)` over `ranks`, which are on so many hosts."""
    return reduced(op, [sample(dtype, rank, salt, min(numel, PERIOD)) for rank in ranks], numel, hosts)


def reduced(op: str, inputs: list[torch.Tensor], numel: int, hosts: int = 1) -> Expected:
    """The reduction of one period of each input."""
    dtype = inputs[0].dtype
    if dtype in BOOL or dtype in INTEGERS:
        exact = _boolean(op, inputs) if dtype in BOOL else _integer(op, inputs)
        return Expected(exact, exact, numel)
    return _bounded(op, inputs, numel, hosts)


def _boolean(op: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    by_op = {
        **dict.fromkeys(("SUM", "MAX", "BOR"), torch.logical_or),
        **dict.fromkeys(("PRODUCT", "MIN", "BAND"), torch.logical_and),
        "BXOR": torch.logical_xor,
    }
    return functools.reduce(by_op[op], inputs)


def _integer(op: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    """In 64 bits, where the low bits are those of the narrower type. No uint64 sample reaches 2**63."""
    wide = [each.to(torch.int64) for each in inputs]
    if op == "AVG":
        result = torch.div(functools.reduce(torch.add, wide), len(wide), rounding_mode="trunc")
    else:
        by_op = {
            "SUM": torch.add,
            "PRODUCT": torch.mul,
            "MIN": torch.minimum,
            "MAX": torch.maximum,
            "BAND": torch.bitwise_and,
            "BOR": torch.bitwise_or,
            "BXOR": torch.bitwise_xor,
        }
        result = functools.reduce(by_op[op], wide)
    if inputs[0].dtype is torch.uint64:
        return result.view(torch.uint64)
    return result.to(inputs[0].dtype)


def _bounded(op: str, inputs: list[torch.Tensor], numel: int, hosts: int) -> Expected:
    dtype = inputs[0].dtype
    wide = [each.to(torch.complex128 if dtype in COMPLEX else torch.float64) for each in inputs]
    if op in ("MIN", "MAX"):
        exact = functools.reduce(torch.minimum if op == "MIN" else torch.maximum, wide).to(dtype)
        return Expected(exact, exact, numel)
    double = dtype in (torch.float64, torch.complex128)
    roundings = len(wide) - 1
    if op == "PRODUCT":
        value = functools.reduce(torch.mul, wide)
        magnitude = value.abs()
        scale = 5**0.5 if dtype in COMPLEX else 1.0  # of one complex multiplication, known to be sharp
    else:
        parts = [torch.view_as_real(each) for each in wide] if dtype in COMPLEX else wide
        total = functools.reduce(torch.add, parts)
        magnitude = functools.reduce(torch.add, [each.abs() for each in parts])
        scale = 1.0
        if op == "AVG":
            total, magnitude = total / len(wide), magnitude / len(wide)
            roundings += 1
        elif op == "PREMUL_SUM":
            total, magnitude = total * PREMUL_FACTOR, magnitude * PREMUL_FACTOR
            roundings += 1
        value = torch.view_as_complex(total) if dtype in COMPLEX else total
    unit = roundings * scale * (torch.finfo(torch.float64 if double else torch.float32).eps / 2)
    error = (2 if double else 1) * unit / (1 - unit) * magnitude  # in float64 the reference rounds as well
    if hosts > 1 and dtype is torch.bfloat16:  # what each host has reduced may be rounded once more
        narrow = torch.finfo(dtype).eps / 2
        error += ((1 + narrow) ** hosts - 1 if op == "PRODUCT" else narrow) * (magnitude + error)
    if dtype not in COMPLEX:
        return Expected((value - error).to(dtype), (value + error).to(dtype), numel)
    if op == "PRODUCT":
        error = error.unsqueeze(-1)
    flat = torch.view_as_real(value)
    low, high = (torch.view_as_complex(each).to(dtype) for each in (flat - error, flat + error))
    return Expected(low, high, numel)
