"""Finding overlays by name and path, and what the hash covers."""

import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specpilot_sglang.overlay import InvalidOverlayError, OverlayError, load_overlay, overlay_folders

PATCHED = "name: x\npatches:\n  - {file: a.py, function: f}\n"


def test_import_is_light():
    code = "import sys, specpilot_sglang.overlay as o; o.overlay_folders(); "
    code += (
        "heavy = {'torch', 'sglang', 'numpy', 'triton', 'rich', 'typer'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_name_folder_and_file_load_the_same():
    by_name = load_overlay("template")
    assert load_overlay(str(by_name.folder)) == by_name
    assert load_overlay(str(by_name.path)) == by_name


def test_unknown_name_lists_what_exists_and_guesses():
    with pytest.raises(OverlayError) as caught:
        load_overlay("qwen3.8-27b-dflash2-h100")
    line = caught.value.line()
    assert "did you mean 'qwen3.8-27b-dflash2-h200'" in line
    assert all(folder.name in line for folder in overlay_folders())


def test_local_folder_of_that_name_is_pointed_out(make_overlay, monkeypatch):
    monkeypatch.chdir(make_overlay().parent)
    with pytest.raises(OverlayError, match=r"write \./x"):
        load_overlay("x")
    assert load_overlay("./x").overlay.name == "x"


def test_overlay_path_adds_folders(make_overlay, monkeypatch, tmp_path):
    make_overlay("name: mine\n", name="lib/mine")
    make_overlay("name: other\n", name="lib2/other")
    monkeypatch.setenv("SPECPILOT_OVERLAY_PATH", os.pathsep.join([str(tmp_path / "lib"), "", str(tmp_path / "lib2")]))
    assert load_overlay("mine").folder == tmp_path / "lib/mine"
    assert load_overlay("other").folder == tmp_path / "lib2/other"


def test_overlay_path_that_is_no_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECPILOT_OVERLAY_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(OverlayError, match=r"SPECPILOT_OVERLAY_PATH: .*nowhere is not a folder"):
        load_overlay("template")


def test_a_name_in_two_places_is_refused_not_shadowed(make_overlay, monkeypatch, tmp_path):
    make_overlay("name: template\n", name="lib/template")
    monkeypatch.setenv("SPECPILOT_OVERLAY_PATH", str(tmp_path / "lib"))
    with pytest.raises(OverlayError, match="exists 2 times"):
        load_overlay("template")
    assert load_overlay(str(tmp_path / "lib/template")).overlay.name == "template"


def test_library_folder_must_carry_the_overlays_name(make_overlay, monkeypatch, tmp_path):
    make_overlay("# comment\nname: y\n", name="lib/x")
    monkeypatch.setenv("SPECPILOT_OVERLAY_PATH", str(tmp_path / "lib"))
    with pytest.raises(InvalidOverlayError, match=r"overlay\.yaml:2:name: .*'y'.*'x'"):
        load_overlay("x")


def test_hash_is_deterministic_and_free_of_place_and_time(make_overlay, tmp_path):
    folder = make_overlay(PATCHED, a="def f(): return []\n", b="x = 1\n")
    first = load_overlay(str(folder)).sha256
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)
    os.utime(copy / "a.py", (0, 0))
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"cache")
    assert load_overlay(str(copy)).sha256 == first


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a.py").write_text("def f(): return 2\n"),
        lambda folder: (folder / "notes.txt").write_text(""),
        lambda folder: (folder / "b.py").rename(folder / "c.py"),
        lambda folder: (folder / "overlay.yaml").write_text(PATCHED + "# a comment\n"),
        lambda folder: (folder / "b.py").unlink(),
        # the same bytes in all, divided otherwise between names and contents
        lambda folder: ((folder / "b.py").unlink(), (folder / "b.pyx").write_text("= 1\n")),
    ],
)
def test_hash_covers_every_name_and_byte(make_overlay, change):
    folder = make_overlay(PATCHED, a="def f(): return []\n", b="x = 1\n")
    before = load_overlay(str(folder)).sha256
    change(folder)
    assert load_overlay(str(folder)).sha256 != before


def test_lone_yaml_file_is_hashed_alone(make_overlay, tmp_path):
    text = "name: alone\n"
    (tmp_path / "alone.yaml").write_text(text)
    (tmp_path / "neighbour.bin").write_bytes(b"x")
    assert load_overlay(str(tmp_path / "alone.yaml")).sha256 == load_overlay(str(make_overlay(text, name="f"))).sha256


def test_lone_yaml_file_may_not_have_patches(tmp_path):
    (tmp_path / "alone.yaml").write_text(PATCHED)
    (tmp_path / "a.py").write_text("def f(): return []\n")
    with pytest.raises(InvalidOverlayError, match=r"alone\.yaml:2:patches: only a folder's overlay\.yaml"):
        load_overlay(str(tmp_path / "alone.yaml"))


def test_byte_order_mark_is_accepted(make_overlay):
    assert load_overlay(str(make_overlay(b"\xef\xbb\xbfname: x\n"))).overlay.name == "x"


@pytest.mark.parametrize("link", ["a.py", "sub", "notes.txt"])
def test_links_in_the_folder_are_refused(make_overlay, tmp_path, link):
    folder = make_overlay()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.py").write_text("def f(): return []\n")
    (folder / link).symlink_to(outside if link == "sub" else outside / "a.py")
    with pytest.raises(InvalidOverlayError, match=f"{link} in the overlay's folder is a link"):
        load_overlay(str(folder))


def test_dangling_link_and_fifo_are_refused(make_overlay):
    folder = make_overlay()
    os.mkfifo(folder / "pipe")
    with pytest.raises(InvalidOverlayError, match="pipe in the overlay's folder"):
        load_overlay(str(folder))


def test_folder_shared_with_much_else_is_refused(make_overlay):
    folder = make_overlay()
    for i in range(300):
        (folder / f"{i}.txt").touch()
    with pytest.raises(InvalidOverlayError, match="more than 256 files"):
        load_overlay(str(folder))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def g(): pass\n", "defines no function 'f'"),
        ("class K:\n    def f(self): pass\n", "defines no function 'f'"),
        ("def f(:\n", "not valid Python"),
        ("def ff(): pass\n", "did you mean 'ff'"),
    ],
)
def test_patch_is_checked_without_running_it(make_overlay, source, says):
    with pytest.raises(InvalidOverlayError, match=says) as caught:
        load_overlay(str(make_overlay(PATCHED, a="raise SystemExit\n" + source)))
    assert caught.value.problems[0].line == 3


def test_loading_does_not_run_patch_code(make_overlay, tmp_path):
    marker = tmp_path / "ran"
    source = f"open({str(marker)!r}, 'w')\ndef f(): return []\n"
    load_overlay(str(make_overlay(PATCHED, a=source)))
    assert not marker.exists()


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200), st.text(max_size=200).map(lambda text: ("name: x\n" + text).encode("utf-8", "replace"))
    )
)
def test_any_bytes_either_load_or_give_one_clear_error(tmp_path_factory, content):
    file = tmp_path_factory.mktemp("fuzz") / "overlay.yaml"
    file.write_bytes(content)
    error = None
    try:
        load_overlay(str(file))
    except InvalidOverlayError as exc:
        error = exc
    assert error is None or (error.fix and str(file) in error.line())
