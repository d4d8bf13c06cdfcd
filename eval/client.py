"""A small HTTP client of one SGLang server: generation with token ids, server information, cache flush."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from specpilot_sglang.errors import SpecPilotError

_CONNECT_S = 10.0


@dataclass(frozen=True)
class Answer:
    """What the server returned for one request.

    Attributes:
        output_ids: generated token ids, an end token included where the model produced one.
        text: detokenised output; empty when the server skips the tokenizer.
        finish: finish reason's type: `stop`, `length` or `abort`.
        meta: SGLang's `meta_info`, unchanged.
    """

    output_ids: list[int]
    text: str
    finish: str
    meta: dict[str, Any]

    @property
    def verify_steps(self) -> int:
        """Verify passes of speculative decoding; 0 when the server decoded plainly."""
        return int(self.meta.get("spec_verify_ct") or 0)


class RequestFailedError(SpecPilotError):
    """One request was refused, aborted or lost; the server as a whole may be well."""


class Client:
    """Talks to `url`; safe to share between threads."""

    def __init__(self, url: str, *, timeout_s: float = 600.0) -> None:
        self.url = url.rstrip("/")
        # trust_env off: an HTTP proxy of the environment must not see requests to a local server.
        self._http = httpx.Client(
            base_url=self.url,
            timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S),
            trust_env=not _is_local(self.url),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def generate(
        self, *, input_ids: Sequence[int] | None = None, text: str | None = None, sampling: dict[str, Any], **extra: Any
    ) -> Answer:
        """Send one non-streaming `/generate` request.

        Args:
            input_ids: prompt token ids; or
            text: prompt text, tokenised by the server.
            sampling: SGLang sampling parameters.
            extra: further fields of the request, such as `return_logprob`.

        Raises:
            RequestFailedError: HTTP error, abort, or an answer without token ids.
        """
        prompt = {"text": text} if input_ids is None else {"input_ids": list(input_ids)}
        body = self._json("POST", "/generate", json={**prompt, "sampling_params": sampling, **extra})
        meta = body.get("meta_info") or {}
        reason = meta.get("finish_reason") or {}
        finish = str(reason.get("type", "")) if isinstance(reason, dict) else str(reason)
        if finish == "abort" or "output_ids" not in body:
            message = reason.get("message") if isinstance(reason, dict) else ""
            raise RequestFailedError(f"/generate: {message or finish or 'no output_ids in the answer'}", where=self.url)
        return Answer([int(i) for i in body["output_ids"]], str(body.get("text") or ""), finish, meta)

    def server_info(self) -> dict[str, Any]:
        """Return `/server_info`: the resolved server arguments and internal state."""
        return self._json("GET", "/server_info")

    def model_info(self) -> dict[str, Any]:
        """Return `/model_info`: model and tokenizer paths."""
        return self._json("GET", "/model_info")

    def attestation(self) -> dict[str, Any] | None:
        """Return the plugin's `GET /specpilot`, or None when the server does not have it."""
        try:
            return self._json("GET", "/specpilot")
        except RequestFailedError:
            return None

    def metrics(self) -> str | None:
        """Return Prometheus' text from `/metrics`, or None on a server without `--enable-metrics`."""
        try:
            return self._request("GET", "/metrics/", follow_redirects=True).text
        except RequestFailedError:
            return None

    def flush_cache(self) -> None:
        """Empty the radix cache, waiting for running requests to end."""
        self._request("POST", "/flush_cache", params={"timeout": 30.0})

    def _json(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        response = self._request(method, path, **kwargs)
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise RequestFailedError(f"{path}: answer is no JSON object", where=self.url)
        return body

    def _request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **kwargs)
        except httpx.ConnectError as exc:
            raise SpecPilotError("no server answers", where=self.url, fix="start it or correct the URL") from exc
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise RequestFailedError(f"{path}: {exc or type(exc).__name__}", where=self.url) from exc
        if response.status_code != httpx.codes.OK:
            detail = " ".join(response.text.split())[:300]
            raise RequestFailedError(f"{path}: HTTP {response.status_code} {detail}", where=self.url)
        return response


def _is_local(url: str) -> bool:
    try:
        return httpx.URL(url).host in {"127.0.0.1", "localhost", "::1"}
    except httpx.InvalidURL as exc:
        raise SpecPilotError(f"not a URL ({exc})", where=url, fix="use http://HOST:PORT") from exc
