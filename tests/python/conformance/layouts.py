"""Tensors that hold the same elements, laid out differently."""

from __future__ import annotations

from collections.abc import Callable

import torch

Layout = Callable[[torch.Tensor], torch.Tensor]


def contiguous(values: torch.Tensor) -> torch.Tensor:
    return values.clone()


def shifted(values: torch.Tensor) -> torch.Tensor:
    """Contiguous, but not where an allocator would put it."""
    tensor = torch.empty(values.numel() + 1, dtype=values.dtype)[1:]
    tensor.copy_(values)
    return tensor


def strided(values: torch.Tensor) -> torch.Tensor:
    tensor = torch.empty(values.numel(), 2, dtype=values.dtype)[:, 0]
    tensor.copy_(values)
    return tensor


def transposed(values: torch.Tensor) -> torch.Tensor:
    rows = 2 if values.numel() % 2 == 0 else 1
    tensor = torch.empty(values.numel() // rows, rows, dtype=values.dtype).t()
    tensor.copy_(values.view(rows, -1) if values.numel() else values.view(rows, 0))
    return tensor


def inference(values: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return values.clone()


def parameter(values: torch.Tensor) -> torch.Tensor:
    """A leaf that requires a gradient, like what DDP broadcasts."""
    return values.clone().requires_grad_()


def strided_parameter(values: torch.Tensor) -> torch.Tensor:
    return strided(values).requires_grad_()


def zero_dim(values: torch.Tensor) -> torch.Tensor:
    return values.clone().reshape(())


def conjugated(values: torch.Tensor) -> torch.Tensor:
    return values.conj().resolve_conj().conj()


def negated(values: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(-values)


def moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """The same on a device, laid out alike, where the elements come by work of the current stream."""
    if device == "cpu":
        return tensor
    whole = tensor if tensor._base is None else tensor._base
    with torch.inference_mode(tensor.is_inference()):
        there = whole.detach().to(device)
        late = torch.empty_like(there).copy_(there)
        same = late.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    return same.requires_grad_(tensor.requires_grad)


def fitting(layout: Layout, numel: int) -> Layout:
    """The layout, or a plain one where it is for a single element and there are others."""
    return contiguous if layout is zero_dim and numel != 1 else layout


def sliceable(layout: Layout) -> Layout:
    """The layout, or another one, that leaves one dimension, of which views can be taken and written to."""
    if layout in (zero_dim, parameter):
        return contiguous
    return strided if layout in (transposed, strided_parameter) else layout


def resolved(layout: Layout) -> Layout:
    """The layout, or a plain one in place of one that is conjugated or negated only in name."""
    return contiguous if layout in (conjugated, negated) else layout


def layouts_of(dtype: torch.dtype, numel: int) -> list[Layout]:
    found: list[Layout] = [contiguous, shifted, strided, transposed, inference]
    if dtype.is_floating_point or dtype.is_complex:
        found += [parameter, strided_parameter]
    if dtype in (torch.complex64, torch.complex128):
        found += [conjugated, negated]
    if dtype in (torch.float32, torch.float64):
        found += [negated]
    if numel == 1:
        found += [zero_dim]
    return found
