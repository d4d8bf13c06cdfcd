"""W12: BF16 weights in 12 bits, bit for bit. Codec, container, and SGLang's quantization method."""
