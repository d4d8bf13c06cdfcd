"""Patch engine: all or nothing, reversible, refuses on drift, follows `from module import name`."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from specpilot_sglang.errors import PatchDriftError
from specpilot_sglang.patching import Kind, Patch, PatchSet, fingerprint

VERSION = "0.5.23"
SOURCE = """
def plain(x):
    return x + 1


class Worker:
    def step(self, x):
        return x * 2

    @classmethod
    def build(cls, x):
        return cls, x

    @staticmethod
    def pure(x):
        return x
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module `sglang_target` with a second module that imported from it."""
    (tmp_path / "sglang_target.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    import sglang_target

    importer = types.ModuleType("sglang.test_importer")
    importer.plain, importer.Worker = sglang_target.plain, sglang_target.Worker
    monkeypatch.setitem(sys.modules, "sglang.test_importer", importer)
    yield sglang_target, importer
    sys.modules.pop("sglang_target", None)


def patch(module, name, kind, replacement, mark=None):
    obj = module
    for part in name.split("."):
        obj = getattr(obj, part)
    return Patch(f"sglang_target:{name}", kind, replacement, mark or fingerprint(obj), "test")


def test_around_replace_and_undo_restore_identity(target):
    module, importer = target
    before = (module.plain, module.Worker.__dict__["build"], module.Worker.__dict__["pure"])
    patches = PatchSet(
        [
            patch(module, "plain", Kind.AROUND, lambda original, x: original(x) * 10),
            patch(module, "Worker.build", Kind.AROUND, lambda original, cls, x: (*original(cls, x), "seen")),
            patch(module, "Worker.pure", Kind.REPLACE, lambda x: -x),
        ],
        VERSION,
    )
    applied = patches.apply()
    assert [a.target for a in applied] == [
        "sglang_target:plain",
        "sglang_target:Worker.build",
        "sglang_target:Worker.pure",
    ]
    assert module.plain(1) == importer.plain(1) == 20
    assert module.Worker.build(3) == (module.Worker, 3, "seen")
    assert module.Worker.pure(4) == -4 == module.Worker().pure(4)
    patches.undo()
    assert (module.plain, module.Worker.__dict__["build"], module.Worker.__dict__["pure"]) == before
    assert importer.plain is module.plain


def test_subclass_replaces_the_name_everywhere_and_isinstance_holds(target):
    module, importer = target
    original = module.Worker

    def factory(base):
        class Faster(base):
            def step(self, x):
                return super().step(x) + 1

        return Faster

    patches = PatchSet([patch(module, "Worker", Kind.SUBCLASS, factory)], VERSION)
    patches.apply()
    assert importer.Worker is module.Worker is not original
    assert module.Worker().step(2) == 5
    assert isinstance(module.Worker(), original)
    patches.undo()
    assert importer.Worker is module.Worker is original


def test_drifted_fingerprint_refuses_with_file_and_symbol_and_changes_nothing(target):
    module, _ = target
    original = module.plain
    good = patch(module, "Worker.pure", Kind.REPLACE, lambda x: x)
    bad = patch(module, "plain", Kind.REPLACE, lambda x: x, mark="0" * 16)
    with pytest.raises(PatchDriftError) as info:
        PatchSet([good, bad], VERSION).apply()
    line = info.value.line()
    assert "sglang_target.py" in line
    assert "plain" in line
    assert VERSION in line
    assert "Fix:" in line
    assert module.plain is original
    assert module.Worker.pure(3) == 3


def test_failing_factory_rolls_back_patches_applied_before_it(target):
    module, _ = target
    original = module.plain
    patches = PatchSet(
        [
            patch(module, "plain", Kind.REPLACE, lambda x: 0),
            patch(module, "Worker", Kind.SUBCLASS, lambda base: object),
        ],
        VERSION,
    )
    with pytest.raises(PatchDriftError, match="not a subclass"):
        patches.apply()
    assert module.plain is original


def test_unknown_version_and_missing_symbol_refuse(target):
    module, _ = target
    with pytest.raises(PatchDriftError, match=r"not 0\.5\.24"):
        PatchSet([patch(module, "plain", Kind.REPLACE, lambda x: x)], "0.5.24").apply()
    gone = Patch("sglang_target:absent", Kind.REPLACE, lambda x: x, "0" * 16, "test")
    with pytest.raises(PatchDriftError, match="does not exist"):
        PatchSet([gone], VERSION).apply()


def test_fingerprint_ignores_indentation_but_not_code(target, tmp_path: Path, monkeypatch):
    module, _ = target
    (tmp_path / "shifted.py").write_text("if True:\n    def plain(x):\n        return x + 1   \n")
    (tmp_path / "changed.py").write_text("def plain(x):\n    return x + 2\n")
    import changed
    import shifted

    assert fingerprint(shifted.plain) == fingerprint(module.plain)
    assert fingerprint(changed.plain) != fingerprint(module.plain)


def test_every_declared_fingerprint_matches_the_installed_sglang():
    from specpilot_sglang.patching.source import locate
    from specpilot_sglang.plugin.known_sources import FINGERPRINTS

    found = {target: fingerprint(locate(target).raw) for target in FINGERPRINTS}
    assert found == FINGERPRINTS
