"""Prompts with which speed, accept length and answers are measured, from packages, the hub or a file."""

from specpilot_sglang.eval.suites.catalogue import GSM8K_TRAINED_ROWS, SUITES, SuiteSpec
from specpilot_sglang.eval.suites.item import Item
from specpilot_sglang.eval.suites.loading import Suite, instructed, load, open_suite
from specpilot_sglang.eval.suites.sources import SOURCES, Origin

#: Suites that a package holds, so that they load without the hub.
PACKAGED = tuple(name for name, spec in SUITES.items() if spec.asset)

__all__ = [
    "GSM8K_TRAINED_ROWS",
    "PACKAGED",
    "SOURCES",
    "SUITES",
    "Item",
    "Origin",
    "Suite",
    "SuiteSpec",
    "instructed",
    "load",
    "open_suite",
]
