"""Reversible, fingerprinted patches of SGLang symbols."""

from specpilot_sglang.patching.engine import AppliedPatch, PatchSet
from specpilot_sglang.patching.patch import Kind, Patch
from specpilot_sglang.patching.source import fingerprint

__all__ = ["AppliedPatch", "Kind", "Patch", "PatchSet", "fingerprint"]
