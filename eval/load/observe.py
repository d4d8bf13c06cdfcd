"""What is seen of a server before and after a load run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from specpilot_sglang.eval.client import Client
from specpilot_sglang.eval.load.guards import check_log, check_lossless, environment_of
from specpilot_sglang.eval.servers import Server

_VERIFY_CALLS = "sglang:spec_verify_calls_total"
#: Environment variables that can change speed or answers.
_MATTER = ("SGLANG_", "SPECPILOT_", "CUDA_", "NCCL_", "TORCH", "OMP_", "MKL_", "KMP_", "GOMP_", "ONEDNN_", "LD_PRELOAD")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


@dataclass(frozen=True)
class Observation:
    """One look at a server.

    Attributes:
        info: `/server_info` without secrets.
        attestation: the plugin's `GET /specpilot`, None without the plugin.
        verify_calls: verify steps of all requests so far, None without `--enable-metrics` or speculation.
        env: the environment its processes were started with.
        problems: why a recorded run must not use it.
    """

    info: dict[str, Any]
    attestation: dict[str, Any] | None
    verify_calls: int | None
    env: dict[str, str]
    problems: tuple[str, ...]


def observe(server: Server) -> Observation:
    """Look at a running server once."""
    info, attestation = server.server_info(), server.client.attestation()
    env = {**server.env, **environment_of(server.processes())}
    log = server.log.read_text(encoding="utf-8", errors="replace") if server.log.exists() else ""
    problems = [*check_lossless(env, info, attestation), *check_log(log)]
    return Observation(without_secrets(info), attestation, verify_calls(server.client), env, tuple(problems))


def verify_calls(client: Client) -> int | None:
    """Return the verify steps of all finished requests by SGLang's own counter, None where it is not exported."""
    text = client.metrics()
    if text is None:
        return None
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples if s.name == _VERIFY_CALLS]
    return int(sum(s.value for s in samples)) if samples else None


def variables_that_matter(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that can change speed or answers, without secrets."""
    chosen = {name: value for name, value in env.items() if name.startswith(_MATTER)}
    return {name: value for name, value in sorted(chosen.items()) if not _is_secret(name)}


def without_secrets(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return `/server_info` without keys and passwords, in the live states too."""
    plain = {k: "(set)" if v and _is_secret_setting(k) else v for k, v in info.items()}
    states = plain.get("internal_states")
    if isinstance(states, list):
        plain["internal_states"] = [without_secrets(s) if isinstance(s, Mapping) else s for s in states]
    plain.pop("launch_command", None)  # it repeats the arguments, keys and all
    return plain


def _is_secret(name: str) -> bool:
    return any(word in name.upper() for word in _SECRET)


def _is_secret_setting(name: str) -> bool:
    return name.endswith(("api_key", "password", "hf_token", "secret"))
