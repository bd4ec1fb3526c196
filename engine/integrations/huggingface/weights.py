"""Which model is it? A digest of every weight, and a cheap watch for changes after it was taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import xxhash

from engine.model.huggingface import config_digest, text_config

_SAMPLES = 8


def weights_revision(model: Any) -> str:
    """`weights-` and 32 hex digits over the name, dtype, shape and bytes of every parameter and buffer.

    Adapters hang on the model as parameters, so they are part of it; which of them is active is too. A full pass over
    the weights: about a second for a few gigabytes.
    """
    hasher = xxhash.xxh3_128()
    for name, tensor in _tensors(model):
        hasher.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        if tensor.numel():
            data = tensor.detach().to("cpu").reshape(-1).contiguous().view(torch.uint8)
            hasher.update(data.numpy().data)
    hasher.update(repr(_adapters(model)).encode())
    return f"weights-{hasher.hexdigest()}"


def compute_identity(model: Any) -> str:
    """What else decides the last bits of KV: the version of torch and the kind of device."""
    return f"torch-{torch.__version__.split('+')[0]}/{model.device.type}"


class WeightsWatch:
    """Tells when a model may have changed since it was last asked.

    Looks at addresses, version counters and a few values of every tensor: assignments through `.data`, as merging an
    adapter makes them, move no counter.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._seen = self._signature()

    def changed(self) -> bool:
        """True once for each change: of any tensor (in place, replaced, moved), of the set, or of active adapters."""
        now = self._signature()
        changed, self._seen = now != self._seen, now
        return changed

    def _signature(self) -> tuple[Any, ...]:
        named = list(_tensors(self._model))
        places = tuple((name, t.data_ptr(), _version(t), t.dtype) for name, t in named)
        digest = config_digest(text_config(self._model.config))  # the attention implementation can be switched, too
        return places, digest, _sample([t for _, t in named]), _adapters(self._model)


def _sample(tensors: list[torch.Tensor]) -> str:
    """A digest of up to 8 values of each tensor, evenly spaced in memory; one small copy a dtype."""
    groups: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        if n := tensor.numel():
            step = max(1, n // _SAMPLES)
            few = torch.as_strided(tensor.detach(), (min(_SAMPLES, n // step),), (step,), tensor.storage_offset())
            groups.setdefault((tensor.dtype, tensor.device), []).append(few)
    hasher = xxhash.xxh3_64()
    for group in groups.values():
        hasher.update(torch.cat(group).cpu().view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def _version(tensor: torch.Tensor) -> int:
    """How often it was written in place; tensors made in inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers, but for rotary frequencies: they follow from the configuration, and some models write
    them anew as prompts get longer."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from (x for x in model.named_buffers(remove_duplicate=False) if not x[0].endswith("inv_freq"))


_ADAPTER_SETTINGS = ("active_adapters", "disable_adapters", "scaling", "merged_adapters")


def _adapters(model: Any) -> tuple[Any, ...]:
    """What decides how adapter layers (PEFT's) take part: which are active or merged, how strongly."""
    found = []
    for name, module in model.named_modules():
        if type(module).__module__.startswith("peft."):
            values = [(key, repr(getattr(module, key, None))) for key in _ADAPTER_SETTINGS]
            found.append((name, *(x for x in values if "bound method" not in x[1])))
    return tuple(found)
