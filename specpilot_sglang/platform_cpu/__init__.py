"""CPU reference platform: runs the stock SGLang server on a machine without an accelerator."""
