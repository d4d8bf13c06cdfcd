"""Bad inputs: exit code 2, one line that says what to do, nothing lost, nothing half-written."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from w12_data import gaussian, mixed_tensors, write_checkpoint

from specpilot_sglang.errors import W12Error
from specpilot_sglang.w12 import staging
from specpilot_sglang.w12.pack import PackOptions, pack_checkpoint

Cli = Callable[..., tuple[int, str, str]]


def snapshot(*folders: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for f in folders for p in sorted(f.rglob("*")) if p.is_file()}


def refused(cli: Cli, *args: object, says: str, source: Path, destination: Path) -> str:
    """Run, check exit code, one line with a remedy, untouched source and no output; return the line."""
    before, around = snapshot(source), {p.name for p in destination.parent.iterdir()}
    code, out, err = cli("w12", *args)
    assert code == 2, (out, err)
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert says in lines[0]
    assert "Fix: " in lines[0]
    assert "Traceback" not in err
    assert snapshot(source) == before
    assert {p.name for p in destination.parent.iterdir()} == around
    return lines[0]


def header_of(path: Path) -> tuple[dict, bytes]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write_header(path: Path, header: dict | bytes, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 10)


def cut_in_header(path: Path) -> None:
    os.truncate(path, 40)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * 8)


def wrong_dtype(path: Path) -> None:
    header, data = header_of(path)
    header["model.embed.weight"]["dtype"] = "F32"
    write_header(path, header, data)


def unknown_dtype(path: Path) -> None:
    header, data = header_of(path)
    header["model.embed.weight"]["dtype"] = "BF17"
    write_header(path, header, data)


def not_json(path: Path) -> None:
    write_header(path, b"{not json", header_of(path)[1])


def too_deep(path: Path) -> None:
    write_header(path, b"[" * 100_000, header_of(path)[1])


def overlap(path: Path) -> None:
    header, data = header_of(path)
    entry = next(v for v in header.values() if isinstance(v.get("data_offsets"), list) and v["data_offsets"][0] > 0)
    entry["data_offsets"] = [o - 1 for o in entry["data_offsets"]]
    write_header(path, header, data)


def twice_in_header(path: Path) -> None:
    header, data = header_of(path)
    text = json.dumps(header)[:-1] + ', "model.embed.weight": ' + json.dumps(header["model.embed.weight"]) + "}"
    write_header(path, text.encode(), data)


def metadata_is_a_number(path: Path) -> None:
    header, data = header_of(path)
    write_header(path, {**header, "__metadata__": 1.5}, data)


def metadata_holds_a_number(path: Path) -> None:
    header, data = header_of(path)
    write_header(path, {**header, "__metadata__": {"format": 1}}, data)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut, "bytes of tensors, its header lists"),
        (cut_in_header, "not a complete safetensors file"),
        (empty, "not a complete safetensors file"),
        (grow, "bytes of tensors, its header lists"),
        (wrong_dtype, "header is not valid"),
        (unknown_dtype, "unknown dtype 'BF17'"),
        (not_json, "header is not valid"),
        (too_deep, "header is not valid"),
        (overlap, "hole or overlap"),
        (twice_in_header, "stands twice in the header"),
        (metadata_is_a_number, "header is not valid"),
        (metadata_holds_a_number, "header is not valid"),
    ],
)
def test_damaged_source_shard(damage: Callable, says: str, checkpoint: Path, tmp_path: Path, specpilot: Cli) -> None:
    damage(checkpoint / "model.safetensors")
    out = tmp_path / "packed"
    line = refused(specpilot, "pack", checkpoint, out, says=says, source=checkpoint, destination=out)
    assert "model.safetensors" in line


@pytest.mark.parametrize("with_index", [True, False])
def test_duplicate_tensor_in_two_shards(with_index: bool, tmp_path: Path, specpilot: Cli) -> None:
    same = {"a.weight": gaussian(64, 64)}
    shards = [{**same, "c.weight": gaussian(64, 64)}, {**same, "b.weight": gaussian(64, 64)}]
    source = write_checkpoint(tmp_path / "source", shards, index=with_index)
    out = tmp_path / "packed"
    refused(specpilot, "pack", source, out, says="'a.weight' stands in", source=source, destination=out)


def test_missing_shard_and_tensor_of_the_index(sharded: Path, tmp_path: Path, specpilot: Cli) -> None:
    out = tmp_path / "packed"
    index = sharded / "model.safetensors.index.json"
    good = index.read_text()
    content = json.loads(good)
    content["weight_map"]["ghost.weight"] = content["weight_map"]["model.embed.weight"]
    index.write_text(json.dumps(content))
    refused(specpilot, "pack", sharded, out, says="'ghost.weight' is not in", source=sharded, destination=out)
    index.write_text(good)
    (sharded / "model-00002-of-00002.safetensors").unlink()
    line = refused(specpilot, "pack", sharded, out, says="is missing", source=sharded, destination=out)
    assert "model-00002-of-00002.safetensors" in line


def test_index_that_points_outside_or_is_empty(sharded: Path, tmp_path: Path, specpilot: Cli) -> None:
    out, index = tmp_path / "packed", sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    refused(specpilot, "pack", sharded, out, says="outside the folder", source=sharded, destination=out)
    index.write_text(json.dumps({"weight_map": {}}))
    refused(specpilot, "pack", sharded, out, says="no weight_map", source=sharded, destination=out)


def test_index_whose_metadata_is_no_object(sharded: Path, tmp_path: Path, specpilot: Cli) -> None:
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "metadata": 7}))
    assert specpilot("w12", "pack", sharded, tmp_path / "packed")[0] == 0
    assert specpilot("w12", "unpack", tmp_path / "packed", tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / index.name).read_bytes() == index.read_bytes()


def test_not_a_checkpoint(tmp_path: Path, specpilot: Cli) -> None:
    out, empty_folder = tmp_path / "packed", tmp_path / "empty"
    empty_folder.mkdir()
    refused(specpilot, "pack", empty_folder, out, says="no config.json", source=empty_folder, destination=out)
    (empty_folder / "config.json").write_text("[1]")
    refused(specpilot, "pack", empty_folder, out, says="not a JSON object", source=empty_folder, destination=out)
    (empty_folder / "config.json").write_text("{")
    refused(specpilot, "pack", empty_folder, out, says="not valid JSON", source=empty_folder, destination=out)
    (empty_folder / "config.json").write_text("[" * 100_000)
    refused(specpilot, "pack", empty_folder, out, says="not valid JSON", source=empty_folder, destination=out)
    (empty_folder / "config.json").write_text("{}")
    refused(specpilot, "pack", empty_folder, out, says="no *.safetensors", source=empty_folder, destination=out)
    missing = tmp_path / "missing"
    refused(specpilot, "pack", missing, out, says="does not exist", source=empty_folder, destination=out)
    file = empty_folder / "config.json"
    refused(specpilot, "pack", file, out, says="not a folder", source=empty_folder, destination=out)


def test_nothing_to_pack(tmp_path: Path, specpilot: Cli) -> None:
    source = write_checkpoint(tmp_path / "source", [{"w": torch.randn(64, 64), "h": torch.randn(64, 64).half()}])
    out = tmp_path / "packed"
    line = refused(specpilot, "pack", source, out, says="nothing to pack", source=source, destination=out)
    assert "F16, F32" in line


def test_nothing_fits(tmp_path: Path, specpilot: Cli) -> None:
    source = write_checkpoint(tmp_path / "source", [{"w": mixed_tensors()["model.layers.0.random_bits"]}])
    out = tmp_path / "packed"
    refused(specpilot, "pack", source, out, says="no tensor fits into 12.25", source=source, destination=out)


def test_quantised_or_packed_already(checkpoint: Path, tmp_path: Path, specpilot: Cli) -> None:
    packed, out = tmp_path / "packed", tmp_path / "out"
    specpilot("w12", "pack", checkpoint, packed)
    refused(specpilot, "pack", packed, out, says="packed already", source=packed, destination=out)
    config = {"quantization_config": {"quant_method": "fp8"}}
    (checkpoint / "config.json").write_text(json.dumps(config))
    line = refused(specpilot, "pack", checkpoint, out, says="quantised already", source=checkpoint, destination=out)
    assert "fp8" in line


def test_destination_that_holds_something(checkpoint: Path, tmp_path: Path, specpilot: Cli) -> None:
    out = tmp_path / "packed"
    out.mkdir()
    (out / "precious").write_text("x")
    refused(specpilot, "pack", checkpoint, out, says="not empty", source=tmp_path, destination=out)
    (out / "precious").unlink()
    assert specpilot("w12", "pack", checkpoint, out)[0] == 0  # an empty folder is taken
    file = tmp_path / "file"
    file.write_text("x")
    refused(specpilot, "pack", checkpoint, file, says="not a folder", source=tmp_path, destination=file)


def test_destination_is_the_source_or_inside_it(checkpoint: Path, tmp_path: Path, specpilot: Cli) -> None:
    for out in (checkpoint, tmp_path / "x" / ".." / "source"):
        refused(specpilot, "pack", checkpoint, out, says="same folder", source=checkpoint, destination=checkpoint)
    for out in (checkpoint / "packed", tmp_path):
        refused(specpilot, "pack", checkpoint, out, says="inside or around", source=checkpoint, destination=checkpoint)


def test_destination_below_a_file(checkpoint: Path, tmp_path: Path, specpilot: Cli) -> None:
    (tmp_path / "file").write_text("x")
    out = tmp_path / "file" / "packed"
    before = snapshot(tmp_path)
    code, _, err = specpilot("w12", "pack", checkpoint, out)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "a part of the path is a file" in err
    assert snapshot(tmp_path) == before


@pytest.fixture
def unprivileged() -> Path:
    """A folder that everybody may enter, while this process is nobody when the tests run as root."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    if os.getuid() == 0:
        os.seteuid(0)
    (folder / "locked").chmod(0o755)
    shutil.rmtree(folder)


def test_no_permission(unprivileged: Path, specpilot: Cli) -> None:
    source = write_checkpoint(unprivileged / "source", [{"w": gaussian(64, 64)}])
    for file in source.rglob("*.*"):
        file.chmod(0o755)
    (unprivileged / "locked").mkdir(mode=0o555)
    out = unprivileged / "locked" / "packed"
    if os.getuid() == 0:
        os.seteuid(65534)
    line = refused(specpilot, "pack", source, out, says="permission denied", source=source, destination=out)
    assert "grant write permission" in line
    if os.getuid() == 0:
        os.seteuid(0)
    (source / "model.safetensors").chmod(0o000)
    if os.getuid() == 0:
        os.seteuid(65534)
    code, _, err = specpilot("w12", "pack", source, unprivileged / "packed")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "grant read permission" in err


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_disk_that_is_too_small_is_seen_before_work(checkpoint: Path, small_disk: Path, specpilot: Cli) -> None:
    out = small_disk / "packed"
    line = refused(specpilot, "pack", checkpoint, out, says="the disk has", source=checkpoint, destination=out)
    assert "free space" in line


def test_disk_that_fills_up_while_writing(
    checkpoint: Path, small_disk: Path, specpilot: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(checkpoint)
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda path: usage)
    out = small_disk / "packed"
    line = refused(specpilot, "pack", checkpoint, out, says="no space left", source=checkpoint, destination=out)
    assert "free space" in line
    assert shutil.disk_usage(small_disk).used == 0 or not any(small_disk.iterdir())


def test_disk_full_keeps_finished_shards_and_the_next_run_goes_on(
    sharded: Path, tmp_path: Path, specpilot: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specpilot_sglang.w12 import pack

    real, calls = pack.pack_shard, []

    def second_fails(*args: object) -> object:
        calls.append(args[1])
        if len(calls) == 2:
            raise W12Error("cannot write: no space left on device", where="x", fix="free space")
        return real(*args)

    monkeypatch.setattr(pack, "pack_shard", second_fails)
    assert specpilot("w12", "pack", sharded, tmp_path / "packed")[0] == 2
    assert not (tmp_path / "packed").exists()
    assert specpilot("w12", "pack", sharded, tmp_path / "packed")[0] == 0
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert calls == [first, second, second]
    assert specpilot("w12", "verify", sharded, tmp_path / "packed")[0] == 0
    assert {p.name for p in tmp_path.iterdir()} == {"source", "packed"}


def packed_with(change: Callable[[dict[str, torch.Tensor]], None], checkpoint: Path, folder: Path) -> Path:
    """Pack, change tensors of the packed file, write it back with its metadata."""
    pack_checkpoint(checkpoint, folder, PackOptions())
    path = folder / "model.safetensors"
    metadata = header_of(path)[0]["__metadata__"]
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata=metadata)
    return folder


NAME = "model.layers.0.special.weight"  # has escapes


def flip_plane_a(tensors: dict) -> None:
    tensors[NAME + ".w12_a"][5, 5] ^= 0x10


def flip_plane_b(tensors: dict) -> None:
    tensors[NAME + ".w12_b"][5, 5] ^= 0x10


def flip_base(tensors: dict) -> None:
    blob = tensors[NAME + ".w12_side"]
    escapes = int.from_bytes(blob[12:20].numpy().tobytes(), "little")
    bases = 60 + 16 + 8 * 3 + escapes * 5
    blob[bases + 10] ^= 0x01


def escape_value(tensors: dict) -> None:
    blob = tensors[NAME + ".w12_side"]
    escapes = int.from_bytes(blob[12:20].numpy().tobytes(), "little")
    blob[60 + 16 + 8 * 3 + 2 * escapes] ^= 0x01


def escape_column_order(tensors: dict) -> None:
    at = 60 + 16 + 8 * 3
    blob = tensors[NAME + ".w12_side"]
    blob[at : at + 2] = torch.tensor([0xFF, 0xFF], dtype=torch.uint8)


def escape_pointers(tensors: dict) -> None:
    tensors[NAME + ".w12_side"][60 + 16 + 8] = 250


def escape_count(tensors: dict) -> None:
    tensors[NAME + ".w12_side"][12] += 1


def shape(tensors: dict) -> None:
    tensors[NAME + ".w12_side"][60] += 1


def huge_row(tensors: dict) -> None:
    tensors[NAME + ".w12_side"][60 + 8 + 4] = 255


def many_dimensions(tensors: dict) -> None:
    tensors[NAME + ".w12_side"][9] = 255


def many_dimensions_and_cut(tensors: dict) -> None:
    tensors[NAME + ".w12_side"][9] = 2
    tensors[NAME + ".w12_side"] = tensors[NAME + ".w12_side"][:67].clone()


def mark(tensors: dict) -> None:
    tensors[NAME + ".w12_side"][0] = 0


def version(tensors: dict) -> None:
    tensors[NAME + ".w12_side"][4] = 9


def drop_plane(tensors: dict) -> None:
    del tensors[NAME + ".w12_b"]


def extra_tensor(tensors: dict) -> None:
    tensors["stranger"] = torch.ones(3)


def kept_tensor(tensors: dict) -> None:
    tensors["model.layers.0.norm.weight"][3] = 2


def narrow_plane(tensors: dict) -> None:
    tensors[NAME + ".w12_a"] = tensors[NAME + ".w12_a"][:, :-1].contiguous()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (flip_plane_a, "SHA-256 differs"),
        (flip_plane_b, "SHA-256 differs"),
        (flip_base, "SHA-256 differs"),
        (escape_value, "SHA-256 differs"),
        (kept_tensor, "SHA-256 differs"),
        (escape_column_order, "escape columns"),
        (escape_pointers, "escape pointers"),
        (escape_count, "escape pointers"),
        (shape, "its planes have"),
        (huge_row, "side header"),
        (many_dimensions, "side header"),
        (many_dimensions_and_cut, "side header"),
        (mark, "W12 mark"),
        (version, "version 9"),
        (drop_plane, "part .w12_b is missing"),
        (extra_tensor, "'stranger' does not belong"),
        (narrow_plane, "its planes have"),
    ],
)
def test_damaged_packed_checkpoint(
    change: Callable, says: str, checkpoint: Path, tmp_path: Path, specpilot: Cli
) -> None:
    packed, out = packed_with(change, checkpoint, tmp_path / "packed"), tmp_path / "out"
    line = refused(specpilot, "unpack", packed, out, says=says, source=packed, destination=out)
    assert "model.safetensors" in line


def test_verify_of_a_changed_plane_exits_1(checkpoint: Path, tmp_path: Path, specpilot: Cli) -> None:
    packed = packed_with(flip_plane_a, checkpoint, tmp_path / "packed")
    code, out, _ = specpilot("w12", "verify", checkpoint, packed)
    assert code == 1
    assert f"{NAME}: 1 of " in out


def test_wrong_format_version_of_the_container(checkpoint: Path, tmp_path: Path, specpilot: Cli) -> None:
    packed, out = tmp_path / "packed", tmp_path / "out"
    specpilot("w12", "pack", checkpoint, packed)
    header, data = header_of(packed / "model.safetensors")
    header["__metadata__"]["w12.version"] = "2"
    write_header(packed / "model.safetensors", header, data)
    for command in (("unpack", packed, out), ("inspect", packed), ("verify", checkpoint, packed)):
        refused(specpilot, *command, says="version 2", source=packed, destination=out)
    del header["__metadata__"]["w12.version"]
    write_header(packed / "model.safetensors", header, data)
    refused(specpilot, "unpack", packed, out, says="not a W12 shard", source=packed, destination=out)


def test_inspect_and_unpack_of_an_unpacked_model(checkpoint: Path, tmp_path: Path, specpilot: Cli) -> None:
    out = tmp_path / "out"
    refused(specpilot, "inspect", checkpoint, says="not a W12 checkpoint", source=checkpoint, destination=out)
    refused(specpilot, "unpack", checkpoint, out, says="not a W12 checkpoint", source=checkpoint, destination=out)


def test_second_run_while_the_first_writes(checkpoint: Path, tmp_path: Path, specpilot: Cli) -> None:
    with staging.Staging(tmp_path / "packed", (checkpoint,), {"job": 1}, 0):
        code, _, err = specpilot("w12", "pack", checkpoint, tmp_path / "packed")
    assert code == 2
    assert "another run" in err


def test_changed_header_of_the_original_is_noticed(checkpoint: Path, tmp_path: Path, specpilot: Cli) -> None:
    packed, out = tmp_path / "packed", tmp_path / "out"
    specpilot("w12", "pack", checkpoint, packed)
    header, data = header_of(packed / "model.safetensors")
    original = header["__metadata__"]["w12.source_header"]
    changed = original.replace('"format":"pt"', '"format":"np"')
    assert changed != original
    header["__metadata__"]["w12.source_header"] = changed
    write_header(packed / "model.safetensors", header, data)
    for command in (("unpack", packed, out), ("inspect", packed), ("verify", checkpoint, packed)):
        refused(specpilot, *command, says="header", source=packed, destination=out)


def test_config_without_a_method_comes_back_byte_for_byte(checkpoint: Path, tmp_path: Path, specpilot: Cli) -> None:
    text = '{"model_type": "llama",  "quantization_config": null}'
    (checkpoint / "config.json").write_text(text)
    assert specpilot("w12", "pack", checkpoint, tmp_path / "packed")[0] == 0
    assert specpilot("w12", "unpack", tmp_path / "packed", tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / "config.json").read_text() == text
