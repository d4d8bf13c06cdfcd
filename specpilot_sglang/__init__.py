"""SpecPilot for SGLang: faster speculative decoding on a stock server, with the same answers."""

__version__ = "0.1.0"

#: The only SGLang release whose internals the patches were written against.
SGLANG_VERSION = "0.5.23"
