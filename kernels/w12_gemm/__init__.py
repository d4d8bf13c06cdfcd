"""W12 GEMM: y = x @ W.T for few tokens on Hopper, W read as 12 bits (or its 8-bit view, or BF16) a weight.

`w12_gemm.cu` multiplies, `w12_decode.cu` gives a packed weight back as BF16, `decode.cuh` is the decoder of both.
`plan` and `tiling` deal out the work, `pack` brings encoded planes into the kernel's order, `build` compiles and
caches, `driver` and `launch` call it, `wide` is the
kernel of many tokens, `linear` is the layer for any number of tokens, `dispatch` says which weights it
serves, `triton_gemm` is the path for other GPUs and shapes, `bench` times it, `ref` is the oracle.
"""
