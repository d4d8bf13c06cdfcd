"""Oracle of the GPU encoder: the codec in torch, whose result it must equal in every field."""

from __future__ import annotations

from specpilot_sglang.w12.codec_torch import encode as encode_ref

__all__ = ["encode_ref"]
