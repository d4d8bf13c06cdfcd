"""The second way to jail an agent: the command line of a container with the same walls, for docker or podman.

Only the command is made here; who runs it also provides the image. The loop's own way is bubblewrap.
"""

from __future__ import annotations

from specpilot_sglang.loop.jail.bubblewrap import PATH
from specpilot_sglang.loop.jail.limits import Limits
from specpilot_sglang.loop.jail.spec import JailSpec

IMAGE = "docker.io/library/python:3.11-slim"


def container_command(spec: JailSpec, engine: str = "docker", image: str = IMAGE) -> list[str]:
    """Return the command line that runs `spec` in a container.

    Args:
        spec: the run; its inputs must hold `run.json` and `inside.py`, as `running.run_in_jail` leaves them.
        engine: `docker` or `podman`.
        image: an image with Python 3.11 and the agent's program.
    """
    walls = ("--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    user = ("--user", "65534:65534", "--ipc", "none", "--hostname", "jail", "--workdir", "/task")
    mounts = [("/in", str(spec.inputs)), *((place, str(source)) for place, source in spec.mounts.items())]
    if spec.socket_dir is not None:
        mounts.append(("/run/model", str(spec.socket_dir)))
    volumes = [x for place, source in mounts for x in ("--volume", f"{source}:{place}:ro")]
    variables = {"PATH": PATH, "HOME": "/task", "TMPDIR": "/tmp", "LANG": "C.UTF-8", **spec.env}
    env = [x for name, value in variables.items() for x in ("--env", f"{name}={value}")]
    command = [image, "python3", "-I", "-S", "-B", "/in/inside.py"]
    return [engine, "run", "--rm", "--init", *walls, *user, *_limits(spec.limits), *volumes, *env, *command]


def _limits(limits: Limits) -> list[str]:
    memory = f"{limits.memory_mib + 2 * limits.disk_mib}m"
    folders = [x for place in ("/task", "/tmp") for x in ("--tmpfs", f"{place}:rw,size={limits.disk_mib}m,mode=1777")]
    return [
        *("--memory", memory, "--memory-swap", memory, "--pids-limit", str(limits.processes), *folders),
        *("--ulimit", f"nofile={limits.open_files}", "--ulimit", "core=0", "--ulimit", f"cpu={limits.cpu_s}"),
        *("--stop-timeout", "1"),
    ]
