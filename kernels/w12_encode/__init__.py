"""W12 encoder on a GPU: the planes, windows and escapes of `codec_torch.encode`, in two passes over the weight.

`kernels` holds the Triton source, `encode` calls it; `ref` names the oracle.
"""
