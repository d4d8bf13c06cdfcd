"""W12 GEMM: y = x @ W.T for few tokens on Hopper, W read as 12 bits (or its 8-bit view, or BF16) a weight.

`w12_gemm.cu` multiplies, `w12_decode.cu` gives a packed weight back as BF16, `decode.cuh` is the decoder of both.
`pack` brings encoded planes into the kernel's order, `tiling` deals out the work, `build` compiles and caches,
`driver` and `launch` call it, `linear` is the layer for any number of tokens, `bench` times it, `ref` is the oracle.
"""
