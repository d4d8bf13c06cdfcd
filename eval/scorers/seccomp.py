"""A seccomp filter that lets a program run but not create processes or threads, for `bwrap --seccomp`.

A limit on the number of processes (`prlimit --nproc`) does not bind root, and counts the user's other processes.
Numbers are the kernel's own: include/uapi/linux/{audit,filter,seccomp}.h and the system call tables.
"""

from __future__ import annotations

import platform
import struct

from specpilot_sglang.errors import SpecPilotError

#: machine -> (audit architecture, system calls that create a process or a thread).
_TABLES = {
    "x86_64": (0xC000003E, (56, 57, 58, 435)),  # clone, fork, vfork, clone3
    "aarch64": (0xC00000B7, (220, 435)),  # clone, clone3
}
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _NOT_PERMITTED = 0x7FFF0000, 0x80000000, 0x00050000 | 1
#: Bit of the other calling convention (x32) that x86-64 kernels may accept under the same architecture.
_X32 = 0x40000000


def no_new_processes(machine: str | None = None) -> bytes:
    """Return the filter as packed BPF instructions.

    Raises:
        SpecPilotError: no table for this kind of machine.
    """
    name = machine or platform.machine()
    if name not in _TABLES:
        raise SpecPilotError(f"no seccomp filter for {name}", fix="score on x86_64 or aarch64")
    architecture, calls = _TABLES[name]
    checks = [(_EQUAL, number) for number in calls] + [(_AT_LEAST, _X32)]
    program = [_instruction(_LOAD, 4), _instruction(_EQUAL, architecture, 1, 0), _instruction(_RETURN, _KILL)]
    program.append(_instruction(_LOAD, 0))
    for index, (operation, number) in enumerate(checks):
        # On a match jump over the remaining checks and the allowing return.
        program.append(_instruction(operation, number, len(checks) - index, 0))
    program += [_instruction(_RETURN, _ALLOW), _instruction(_RETURN, _NOT_PERMITTED)]
    return b"".join(program)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
