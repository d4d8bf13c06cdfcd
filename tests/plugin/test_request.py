"""Requests for the plugin by flag, environment and JSON."""

from __future__ import annotations

import json

import pytest

from specpilot_sglang.errors import PluginError
from specpilot_sglang.plugin.request import from_environment, from_flags


def test_nothing_said_means_no_request():
    assert from_flags(None, None) is None
    assert from_environment({}) is None


def test_flag_environment_and_json_agree(tmp_path):
    file = tmp_path / "specpilot.json"
    file.write_text(json.dumps({"plugin": "specpilot", "overlay": "x"}))
    requests = [
        from_flags("specpilot", "x"),
        from_environment({"SPECPILOT_PLUGIN": "specpilot", "SPECPILOT_OVERLAY": "x"}),
        from_environment({"SPECPILOT_CONFIG": '{"plugin": "specpilot", "overlay": "x"}'}),
        from_environment({"SPECPILOT_CONFIG": str(file)}),
    ]
    assert {r.overlay for r in requests} == {"x"}


@pytest.mark.parametrize(
    "environ",
    [
        {"SPECPILOT_PLUGIN": "other"},
        {"SPECPILOT_OVERLAY": "x"},
        {"SPECPILOT_CONFIG": "{"},
        {"SPECPILOT_CONFIG": "{}"},
        {"SPECPILOT_CONFIG": "/does/not/exist.json"},
        {"SPECPILOT_CONFIG": '{"plugin": "specpilot", "overlai": "x"}'},
        {"SPECPILOT_CONFIG": '{"plugin": "specpilot", "overlay": 3}'},
        {"SPECPILOT_CONFIG": '["specpilot"]'},
    ],
)
def test_malformed_wishes_are_errors_never_stock(environ):
    with pytest.raises(PluginError):
        from_environment(environ)


def test_overlay_flag_alone_is_an_error():
    with pytest.raises(PluginError, match="--speculative-plugin"):
        from_flags(None, "x")
