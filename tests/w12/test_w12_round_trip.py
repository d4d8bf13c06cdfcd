"""Checkpoints through pack, verify, inspect, unpack: the original comes back byte for byte."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from w12_data import gaussian, mixed_tensors, write_checkpoint

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12.pack import PackOptions, pack_checkpoint
from specpilot_sglang.w12.rawfile import SafetensorsReader
from specpilot_sglang.w12.stats import STATS
from specpilot_sglang.w12.stream import decode_stream
from specpilot_sglang.w12.unpack import unpack_checkpoint
from specpilot_sglang.w12.verify import inspect_checkpoint, verify_checkpoint


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("kind", ["checkpoint", "sharded"])
def test_unpack_restores_every_file_byte_for_byte(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source = request.getfixturevalue(kind)
    before = files(source)
    pack_checkpoint(source, tmp_path / "packed", PackOptions())
    assert unpack_checkpoint(tmp_path / "packed", tmp_path / "again") > 0
    assert files(tmp_path / "again") == before
    assert files(source) == before
    assert {p.name for p in tmp_path.iterdir()} == {"source", "packed", "again"}


def test_verify_counts_all_tensors_and_finds_nothing(sharded: Path, tmp_path: Path) -> None:
    pack_checkpoint(sharded, tmp_path / "packed", PackOptions())
    assert verify_checkpoint(sharded, tmp_path / "packed") == (2 * len(mixed_tensors()), [])


def test_what_is_packed_and_what_is_kept_and_why(checkpoint: Path, tmp_path: Path) -> None:
    reports = {r.name.removeprefix("model.layers.0."): r for r in pack_checkpoint(
        checkpoint, tmp_path / "packed", PackOptions(exclude=("embed",))
    )}  # fmt: skip
    assert {n for n, r in reports.items() if r.packed} == {"special.weight", "odd.weight", "experts"}
    reasons = {n: r.reason for n, r in reports.items() if not r.packed}
    assert reasons["model.embed.weight"] == "excluded by 'embed'"
    assert reasons["norm.weight"] == "not a matrix"
    assert reasons["half"] == "F16, not BF16"
    assert reasons["A_log"] == "F32, not BF16"
    assert reasons["fp8"] == "F8_E4M3, not BF16"
    assert reasons["empty"] == "empty"
    assert reasons["random_bits"].startswith("needs ")
    assert reasons["conv1d.weight"].startswith("needs ")
    stored = reports["odd.weight"].stored
    with SafetensorsReader(tmp_path / "packed" / "model.safetensors") as reader:
        parts = [e.nbytes for n, e in reader.entries.items() if n.startswith("model.layers.0.odd.weight")]
    assert sum(parts) == stored  # the reported bits are the file's own bytes


def test_other_readers_can_open_the_packed_file(checkpoint: Path, tmp_path: Path) -> None:
    pack_checkpoint(checkpoint, tmp_path / "packed", PackOptions())
    with safe_open(tmp_path / "packed" / "model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"
        assert file.metadata()["w12.base_dtype"] == "BF16"
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    original = mixed_tensors()
    for name in ("model.layers.0.half", "model.layers.0.A_log", "model.layers.0.ids"):
        assert torch.equal(tensors[name], original[name])
    assert tensors["model.embed.weight.w12_a"].shape == (300, 96)


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_stream_gives_original_names_shapes_and_bits(
    device: torch.device | None, sharded: Path, tmp_path: Path
) -> None:
    pack_checkpoint(sharded, tmp_path / "packed", PackOptions())
    shards = sorted((tmp_path / "packed").glob("*.safetensors"))
    items = [item for shard in shards for item in load_file(shard).items()]
    decoded = STATS.decoded
    # Parts of different tensors interleaved, in any order.
    np.random.default_rng(0).shuffle(items)
    found = dict(decode_stream(items, device))
    original = {n: t for shard in sorted(sharded.glob("*.safetensors")) for n, t in load_file(shard).items()}
    assert found.keys() == original.keys()
    assert STATS.decoded > decoded
    for name, tensor in original.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        raw, expected = (t.contiguous().flatten().view(torch.uint8) for t in (found[name], tensor))
        assert torch.equal(raw, expected), name


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_one_flipped_bit_ends_the_stream_with_the_tensors_name(
    device: torch.device | None, sharded: Path, tmp_path: Path
) -> None:
    pack_checkpoint(sharded, tmp_path / "packed", PackOptions())
    shards = sorted((tmp_path / "packed").glob("*.safetensors"))
    items = {name: t for shard in shards for name, t in load_file(shard).items()}
    last = [name for name in items if name.endswith(".w12_b")][-1]
    items[last] = items[last].clone()
    items[last].view(-1)[7] ^= 1
    with pytest.raises(W12Error, match="SHA-256 differs") as error:
        list(decode_stream(items.items(), device))
    assert error.value.where == last.removesuffix(".w12_b")


def test_config_and_index_of_the_packed_checkpoint(sharded: Path, tmp_path: Path) -> None:
    pack_checkpoint(sharded, tmp_path / "packed", PackOptions(max_bits=12.5))
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    quant = config.pop("quantization_config")
    assert config == json.loads((sharded / "config.json").read_text())
    assert (quant["quant_method"], quant["version"], quant["max_bits"]) == ("w12", 1, 12.5)
    index = json.loads((tmp_path / "packed" / "model.safetensors.index.json").read_text())
    for name, shard in index["weight_map"].items():
        with SafetensorsReader(tmp_path / "packed" / shard) as reader:
            assert name in reader.entries
    assert (tmp_path / "packed" / "sub" / "more.json").exists()


def test_config_edited_after_packing_keeps_the_edit(checkpoint: Path, tmp_path: Path) -> None:
    pack_checkpoint(checkpoint, tmp_path / "packed", PackOptions())
    path = tmp_path / "packed" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rope_scaling": 2}))
    unpack_checkpoint(tmp_path / "packed", tmp_path / "again")
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["rope_scaling"] == 2
    assert "quantization_config" not in config


def test_unusual_tensor_names_and_symbolic_links(tmp_path: Path) -> None:
    names = {'ä ünï "quote" \\ ✓': gaussian(64, 64), "x" * 500: gaussian(64, 64, 1)}
    source = write_checkpoint(tmp_path / "real", [names])
    links = tmp_path / "links"  # as the hub's cache lays models out
    links.mkdir()
    for file in source.iterdir():
        if file.is_file():
            (links / file.name).symlink_to(file)
    pack_checkpoint(links, tmp_path / "packed", PackOptions())
    unpack_checkpoint(tmp_path / "packed", tmp_path / "again")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (source / name).read_bytes()
        assert not (tmp_path / "packed" / name).is_symlink()


def test_files_that_share_a_name_with_the_packers_own_come_through(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("state.json", "lock", "model.safetensors.tmp"):
        (checkpoint / name).write_text(f"the model's {name}")
    pack_checkpoint(checkpoint, tmp_path / "packed", PackOptions())
    unpack_checkpoint(tmp_path / "packed", tmp_path / "unpacked")
    assert files(tmp_path / "unpacked") == files(checkpoint)


@pytest.mark.parametrize("plain_first", [True, False])
def test_stream_refuses_a_tensor_that_comes_both_packed_and_plain(
    plain_first: bool, checkpoint: Path, tmp_path: Path
) -> None:
    pack_checkpoint(checkpoint, tmp_path / "packed", PackOptions())
    packed = list(load_file(tmp_path / "packed" / "model.safetensors").items())
    plain = list(load_file(checkpoint / "model.safetensors").items())
    stale = [(n, t) for n, t in plain if n not in dict(packed)]
    with pytest.raises(W12Error, match="comes twice"):
        list(decode_stream(stale + packed if plain_first else packed + stale))


def test_packing_twice_gives_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    pack_checkpoint(checkpoint, tmp_path / "a", PackOptions())
    pack_checkpoint(checkpoint, tmp_path / "b", PackOptions())
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_commands_report_and_exit_0(checkpoint: Path, tmp_path: Path, specpilot: Callable[..., tuple]) -> None:
    code, out, _ = specpilot("w12", "pack", checkpoint, tmp_path / "packed")
    assert code == 0
    assert "4 tensors packed" in out
    assert specpilot("w12", "verify", checkpoint, tmp_path / "packed")[0] == 0
    code, out, _ = specpilot("w12", "inspect", tmp_path / "packed", "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["totals"]["packed"] == 4
    assert {t["name"] for t in shown["tensors"]} == set(mixed_tensors())
    code, out, _ = specpilot("w12", "inspect", tmp_path / "packed")
    assert code == 0
    assert "needs" in out
    assert specpilot("w12", "unpack", tmp_path / "packed", tmp_path / "again")[0] == 0


def test_verify_exits_1_and_names_the_tensor(checkpoint: Path, tmp_path: Path, specpilot: Callable[..., tuple]) -> None:
    specpilot("w12", "pack", checkpoint, tmp_path / "packed")
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.embed.weight"][7, 9] *= -1
    tensors["model.layers.0.half"][0, 0] += 1
    tensors["model.layers.0.new"] = torch.ones(2)
    del tensors["model.layers.0.ids"]
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
    code, out, _ = specpilot("w12", "verify", checkpoint, tmp_path / "packed")
    assert code == 1
    assert f"model.embed.weight: 1 of 28800 weights differ, first at {7 * 96 + 9}" in out
    assert "model.layers.0.half: bytes differ" in out
    assert "model.layers.0.new: is not in the packed checkpoint" in out
    assert "model.layers.0.ids: is not in the original" in out


def test_inspect_reads_headers_only(checkpoint: Path, tmp_path: Path) -> None:
    made = pack_checkpoint(checkpoint, tmp_path / "packed", PackOptions())
    assert sorted(inspect_checkpoint(tmp_path / "packed"), key=lambda r: r.name) == sorted(made, key=lambda r: r.name)
