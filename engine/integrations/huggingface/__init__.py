"""Prefix reuse for models of Hugging Face transformers (extra `kvdeck[huggingface]`)."""

try:
    import transformers as _transformers  # noqa: F401
except ImportError as error:  # the one place where the extra is asked for
    raise ImportError(
        "kvdeck's Hugging Face integration needs transformers: pip install 'kvdeck[huggingface]'"
    ) from error

from engine.integrations.huggingface.cachemap import CacheMap
from engine.integrations.huggingface.generation import Generation, TokenStream
from engine.integrations.huggingface.layers import CACHE_LAYERS
from engine.integrations.huggingface.prefill import Prefill, Timings
from engine.integrations.huggingface.prefix_cache import PrefixCache
from engine.integrations.huggingface.spec import spec_of
from engine.integrations.huggingface.weights import weights_revision

__all__ = [
    "CACHE_LAYERS",
    "CacheMap",
    "Generation",
    "Prefill",
    "PrefixCache",
    "Timings",
    "TokenStream",
    "spec_of",
    "weights_revision",
]
