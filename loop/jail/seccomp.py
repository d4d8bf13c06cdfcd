"""A seccomp filter for agents: programs may fork and thread, but not make namespaces, mount, trace or reach the kernel.

Numbers are the kernel's own: include/uapi/linux/{audit,filter,seccomp,sched}.h and the system call tables.
"""

from __future__ import annotations

import errno
import platform
import struct

from specpilot_sglang.errors import SpecPilotError

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
#: CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_NAMESPACES = 0x80 | 0x20000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
#: Name -> (x86_64, aarch64). With a user namespace of its own a program could mount memory past its disk limit.
_REFUSED = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "open_by_handle_at": (304, 265),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "reboot": (169, 142),
    "swapon": (167, 224),
}
_MACHINES = {"x86_64": (0, 0xC000003E, 56, 435), "aarch64": (1, 0xC00000B7, 220, 435)}


def agent_filter(machine: str | None = None) -> bytes:
    """Return the filter as packed BPF instructions, for `bwrap --seccomp`.

    Raises:
        SpecPilotError: no table for this kind of machine.
    """
    name = machine or platform.machine()
    if name not in _MACHINES:
        raise SpecPilotError(f"no seccomp filter for {name}", fix="run the loop on x86_64 or aarch64")
    column, architecture, clone, clone3 = _MACHINES[name]
    refuse, missing = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    program = [_op(_LOAD, 4), _op(_EQUAL, architecture, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, 0)]
    program += [_op(_AT_LEAST, _X32, 0, 1), _op(_RETURN, refuse)]
    # Its flags stand in memory, out of a filter's reach; libraries fall back to clone when it is missing.
    program += [_op(_EQUAL, clone3, 0, 1), _op(_RETURN, missing)]
    for numbers in _REFUSED.values():
        program += [_op(_EQUAL, numbers[column], 0, 1), _op(_RETURN, refuse)]
    program += [_op(_EQUAL, clone, 0, 3), _op(_LOAD, 16), _op(_ANY_BIT, _NAMESPACES, 0, 1), _op(_RETURN, refuse)]
    return b"".join([*program, _op(_RETURN, _ALLOW)])


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
