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
        pytest.skip(exc.line())
