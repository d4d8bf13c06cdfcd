"""The Ray executor: one job is one Ray job that holds a whole host; only clusters with token authentication.

Ray's job server runs whatever anyone who reaches it submits, so a cluster without a token is refused. Job folders are
on storage that all hosts share, under the same path.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from specpilot_sglang.errors import SpecPilotError
from specpilot_sglang.loop.executors.base import JobSpec, JobStatus

#: Resource that each host offers once, so that one host runs one job: `ray start --resources '{"specpilot_host": 1}'`.
HOST = "specpilot_host"
#: Seconds for which a cluster may not answer before the job counts as failed.
AWAY_S = 120.0
_FIRST_WAIT_S = 1.0
_STATES = {"PENDING": JobStatus.RUNNING, "RUNNING": JobStatus.RUNNING, "SUCCEEDED": JobStatus.ENDED}


class RayExecutor:
    """Runs jobs on the Ray cluster whose dashboard is at `address`.

    Args:
        address: such as `http://head:8265`.
        gpus: GPUs that a job needs.
        python: Python of the hosts, with this package.

    Raises:
        SpecPilotError: Ray is not installed, the cluster has no token authentication, or the token is not accepted.
    """

    name = "ray"

    def __init__(self, address: str, *, gpus: int = 0, python: str = "python") -> None:
        if find_spec("ray") is None:
            raise SpecPilotError("Ray is not installed", where="ray", fix="pip install 'specpilot-sglang[ray]'")
        require_token(address)
        self._address, self._gpus, self._python = address, gpus, python
        self._client: Any = import_module("ray.job_submission").JobSubmissionClient(address)

    def submit(self, job: JobSpec) -> None:
        """Submit the job unless its id is known: the cluster keeps ids, also when this controller died."""
        if self.poll(job) is not JobStatus.UNKNOWN:
            return
        job.write()
        (job.folder / "result.json").unlink(missing_ok=True)
        # `exec`: whoever ends the shell would leave the job running, beside the next attempt and in its way.
        entry = f"exec {self._python} -P -m specpilot_sglang.loop.executors.job {shlex.quote(str(job.folder))}"
        self._client.submit_job(
            entrypoint=entry,
            submission_id=job.id,
            entrypoint_num_gpus=self._gpus,
            entrypoint_resources={HOST: 1},
            metadata={"key": job.key},
        )

    def poll(self, job: JobSpec) -> JobStatus:
        """Return where the job stands; one that failed without a result is lost with its host.

        Raises:
            SpecPilotError: the cluster did not answer for `AWAY_S`. A shorter silence says nothing about the job, and
                must not have it started a second time.
        """
        asking = Retrying(
            stop=stop_after_delay(AWAY_S),
            wait=wait_random_exponential(multiplier=_FIRST_WAIT_S, max=15.0),
            retry=retry_if_exception_type(SpecPilotError),
            reraise=True,
        )
        state = asking(self._state, job.id)
        if state is None:
            return JobStatus.UNKNOWN
        if state in _STATES:
            return _STATES[state]
        return JobStatus.ENDED if (job.folder / "result.json").exists() else JobStatus.LOST

    def _state(self, name: str) -> str | None:
        try:
            return str(self._client.get_job_status(name).value)
        except RuntimeError as exc:
            if "404" in str(exc) or "not exist" in str(exc):
                return None
            raise SpecPilotError(f"the Ray cluster does not answer ({exc})", where=self._address) from exc
        except (httpx.HTTPError, OSError) as exc:
            raise SpecPilotError(f"the Ray cluster cannot be reached ({exc})", where=self._address) from exc

    def cancel(self, job: JobSpec) -> None:
        """Stop the job."""
        if self.poll(job) is JobStatus.RUNNING:
            self._client.stop_job(job.id)

    def close(self) -> None:
        """Leave jobs running: they outlive the controller, and resuming finds them by their ids."""


def require_token(address: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raise `SpecPilotError` unless this side has a token and the cluster refuses whoever has none."""
    path = environment.get("RAY_AUTH_TOKEN_PATH", "")
    has_token = bool(environment.get("RAY_AUTH_TOKEN")) or (bool(path) and Path(path).is_file())
    if environment.get("RAY_AUTH_MODE") != "token" or not has_token:
        fix = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) here and on every host"
        raise SpecPilotError("Ray is used with token authentication only", where="RAY_AUTH_MODE", fix=fix)
    try:
        with httpx.Client(trust_env=False, timeout=20.0) as client:
            answer = client.get(f"{address.rstrip('/')}/api/jobs/")
    except httpx.HTTPError as exc:
        fix = "give the dashboard's address, http://HOST:8265"
        raise SpecPilotError(f"the Ray cluster cannot be reached ({exc})", where=address, fix=fix) from exc
    if answer.status_code not in (401, 403):
        fix = "start every node of it with RAY_AUTH_MODE=token: anyone who reaches its port can run programs now"
        raise SpecPilotError("the Ray cluster answers without a token", where=address, fix=fix)
