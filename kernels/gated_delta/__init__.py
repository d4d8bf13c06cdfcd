"""Gated DeltaNet: causal convolution and gated delta rule, over chains and draft trees."""
