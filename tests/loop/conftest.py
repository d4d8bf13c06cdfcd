"""What the loop's tests share."""

from __future__ import annotations

import pytest

from specpilot_sglang.errors import SpecPilotError


@pytest.fixture(scope="session")
def jail():
    """Skips when agents cannot be jailed on this machine, which is what the loop would refuse as well."""
    from specpilot_sglang.loop.jail.trial import require_jail

    try:
        require_jail()
    except SpecPilotError as exc:
        # A machine without bubblewrap is skipped; a jail that starts and lacks a wall is what the tests are for.
        if "not true: it" in exc.what:
            pytest.fail(exc.line())
        pytest.skip(exc.line())
