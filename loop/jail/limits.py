"""What a jailed agent may use."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

MIB = 2**20


class Limits(BaseModel):
    """Limits of one jail. A run that passes one ends, and says which.

    Per process they are set by `prlimit` before the agent's program starts; the sums over all processes are
    watched from outside, and by the memory and pids controllers of cgroup v2 where this user may make groups.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    wall_s: float = Field(default=1800.0, gt=0, description="Seconds until everything is killed.")
    cpu_s: int = Field(default=1800, ge=1, description="Processor seconds of one process.")
    memory_mib: int = Field(default=4096, ge=64, description="Resident memory of all processes together.")
    address_space_mib: int = Field(default=65536, ge=128, description="Address space of one process; runtimes reserve.")
    processes: int = Field(default=128, ge=4, description="Processes and threads.")
    disk_mib: int = Field(default=256, ge=1, description="Each of the two writable folders; both are in memory.")
    output_mib: int = Field(default=4, ge=1, description="Patch, note and log together.")
    open_files: int = Field(default=1024, ge=32, description="Open files of one process.")
