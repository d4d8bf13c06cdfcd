"""The journal: every state change of the loop, durable before it counts; agents have no way to it."""

from specpilot_sglang.loop.journal.artifacts import ArtifactStore
from specpilot_sglang.loop.journal.states import Event, Job, JobState, StaleLeaseError
from specpilot_sglang.loop.journal.store import Journal

__all__ = ["ArtifactStore", "Event", "Job", "JobState", "Journal", "StaleLeaseError"]
