"""`GET /specpilot`: the attestation of every rank, as JSON."""

from __future__ import annotations

from typing import Any


def add(tokenizer_manager: Any) -> None:
    """Add the route to SGLang's FastAPI application; API keys guard it like any other route."""
    from sglang.srt.entrypoints import http_server

    async def specpilot() -> dict[str, Any]:
        """Return overlay, patches, mechanisms and hit counters of every rank."""
        states = await tokenizer_manager.get_internal_state()
        return document([rank for state in states for rank in state["specpilot"]["ranks"]])

    http_server.app.add_api_route("/specpilot", specpilot, methods=["GET"])


def document(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the response body: what all ranks share at the top, what differs below `ranks`."""
    first = ranks[0]
    shared = ("plugin", "sglang", "mode", "overlay", "algorithm", "server_args", "overridden", "simulated_acceptance")
    return {
        **{key: first[key] for key in shared},
        "consistent": all(all(r[key] == first[key] for key in shared) for r in ranks),
        "ranks": [{key: value for key, value in r.items() if key not in shared} for r in ranks],
    }
