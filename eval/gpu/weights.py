"""Random normal weights for a shape, as a checkpoint: `python -m specpilot_sglang.eval.gpu.weights SHAPE DIR`.

SGLang's `dummy` weights are uniform and tiny; a weight format must be measured on values with the exponents of trained
weights. Matrices here are normal with standard deviation 0.02, norms are 1. **Random weights**: speed and memory of a
server are real, its text is not.
"""

from __future__ import annotations

import argparse
import json
import logging
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specpilot_sglang.eval.gpu.shapes import SHAPES, write_shape

logger = logging.getLogger(__name__)
STD = 0.02
#: Convolutions mix four values, where 0.02 would leave nothing.
CONVOLUTION_STD = 0.25
#: Bytes of a shard at most, and threads that write shards.
SHARD_BYTES, THREADS = 2 << 30, 8


@dataclass(frozen=True)
class Tensor:
    """One tensor of the checkpoint: `fill` is a standard deviation, or a name of `_CONSTANTS`."""

    name: str
    shape: tuple[int, ...]
    fill: float | str = STD

    @property
    def size(self) -> int:
        """Bytes in BF16."""
        return 2 * torch.Size(self.shape).numel()


_CONSTANTS = {"zero": 0.0, "one": 1.0}


def tensors(config: dict[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors of a Qwen3_5 text model, with the names and shapes of transformers' checkpoints."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield Tensor("model.embed_tokens.weight", (vocab, hidden))
    for index in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{index}."
        full = (index + 1) % config["full_attention_interval"] == 0
        for part in (*(_attention(config) if full else _delta_net(config)), *_feed_forward(config)):
            yield Tensor(prefix + part.name, part.shape, part.fill)
    yield Tensor("model.norm.weight", (hidden,), "zero")
    yield Tensor("lm_head.weight", (vocab, hidden))


def _attention(config: dict[str, Any]) -> Iterator[Tensor]:
    hidden, head = config["hidden_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield Tensor("self_attn.q_proj.weight", (2 * query, hidden))  # with the output gate
    yield Tensor("self_attn.k_proj.weight", (kv, hidden))
    yield Tensor("self_attn.v_proj.weight", (kv, hidden))
    yield Tensor("self_attn.o_proj.weight", (hidden, query))
    yield Tensor("self_attn.q_norm.weight", (head,), "zero")
    yield Tensor("self_attn.k_norm.weight", (head,), "zero")


def _delta_net(config: dict[str, Any]) -> Iterator[Tensor]:
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    key = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    value = heads * config["linear_value_head_dim"]
    yield Tensor("linear_attn.in_proj_qkv.weight", (2 * key + value, hidden))
    yield Tensor("linear_attn.in_proj_z.weight", (value, hidden))
    yield Tensor("linear_attn.in_proj_b.weight", (heads, hidden))
    yield Tensor("linear_attn.in_proj_a.weight", (heads, hidden))
    yield Tensor("linear_attn.conv1d.weight", (2 * key + value, 1, config["linear_conv_kernel_dim"]), CONVOLUTION_STD)
    yield Tensor("linear_attn.A_log", (heads,), "one")
    yield Tensor("linear_attn.dt_bias", (heads,), "one")
    yield Tensor("linear_attn.norm.weight", (config["linear_value_head_dim"],), "one")
    yield Tensor("linear_attn.out_proj.weight", (hidden, value))


def _feed_forward(config: dict[str, Any]) -> Iterator[Tensor]:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    yield Tensor("mlp.gate_proj.weight", (width, hidden))
    yield Tensor("mlp.up_proj.weight", (width, hidden))
    yield Tensor("mlp.down_proj.weight", (hidden, width))
    yield Tensor("input_layernorm.weight", (hidden,), "zero")  # this architecture multiplies by 1 + weight
    yield Tensor("post_attention_layernorm.weight", (hidden,), "zero")


def write_weights(name: str, folder: Path, seed: int = 0) -> Path:
    """Write config.json, shards and index of the shape `name` into `folder`; the GPU draws the numbers if there is one.

    A shard's values depend on `seed` and its place in the list alone.
    """
    write_shape(name, folder)
    shards = _shards(list(tensors(SHAPES[name])))
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    with ThreadPoolExecutor(THREADS) as pool:
        work = enumerate(zip(names, shards, strict=True))
        jobs = [pool.submit(_write_shard, folder / n, s, seed * 4096 + i) for i, (n, s) in work]
        for job in jobs:
            job.result()
    weight_map = {t.name: n for n, shard in zip(names, shards, strict=True) for t in shard}
    total = sum(t.size for shard in shards for t in shard)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
    return folder


def _shards(every: list[Tensor]) -> list[list[Tensor]]:
    shards: list[list[Tensor]] = [[]]
    for tensor in every:
        if shards[-1] and sum(t.size for t in shards[-1]) + tensor.size > SHARD_BYTES:
            shards.append([])
        shards[-1].append(tensor)
    return shards


def _write_shard(path: Path, shard: list[Tensor], seed: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(device).manual_seed(seed)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in shard:
        place = [offset, offset + tensor.size]
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": place}
        offset += tensor.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in shard:
            values = torch.empty(tensor.shape, dtype=torch.bfloat16, device=device)
            if isinstance(tensor.fill, str):
                values.fill_(_CONSTANTS[tensor.fill])
            else:
                values.normal_(0.0, tensor.fill, generator=generator)
            file.write(memoryview(values.cpu().view(torch.int16).numpy()).cast("B"))


def main() -> None:
    """Write one checkpoint and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=[n for n, c in SHAPES.items() if "full_attention_interval" in c])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    begin = time.monotonic()
    folder = write_weights(args.shape, args.folder, args.seed)
    logger.info("%s: written in %.1f s", folder, time.monotonic() - begin)


if __name__ == "__main__":
    main()
