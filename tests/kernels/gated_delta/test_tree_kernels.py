"""The Gated DeltaNet tree kernels against the torch oracle and against plain decoding, bit for bit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths

SCRIPT = Path(__file__).parent / "interpreted_checks.py"
CHECKS = re.findall(r"^def check_(\w+)\(", SCRIPT.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def results():
    """Every check's outcome, from one process under Triton's interpreter."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("check", CHECKS)
def test_interpreted(results, check):
    assert results[check] == "ok", results[check]


def test_paths_owners_and_depths_of_a_small_tree():
    #      0 -> 1 -> 3,  0 -> 2,  1 -> 4; row 5 is padding
    paths = TreePaths.of(torch.tensor([[-1, 0, 0, 1, 1, -1]]), 3)
    assert paths.depths.tolist() == [[0, 1, 1, 2, 2, 0]]
    assert paths.nodes_of.tolist() == [[[0, -1, -1], [0, 1, -1], [0, 2, -1], [0, 1, 3], [0, 1, 4], [5, -1, -1]]]
    assert paths.owners.tolist() == [[2, 3, 2, 3, 4, 5]]


def test_every_node_has_one_owner_that_is_a_leaf_below_it():
    generator = torch.Generator().manual_seed(3)
    parents = torch.stack([torch.randint(0, max(n, 1), (8,), generator=generator) for n in range(20)], 1)
    parents[:, 0] = -1
    paths = TreePaths.of(parents, 20)
    for row in range(8):
        inner = set(parents[row].tolist())
        for node in range(20):
            owner = int(paths.owners[row, node])
            assert owner not in inner
            assert node in paths.nodes_of[row, owner].tolist()
