"""The system-call filter of the sandbox: what namespaces do not contain, and what a program has no use for.

A program for the kernel's packet filter, as seccomp takes it (Linux, Documentation/userspace-api/seccomp_filter.rst).
"""

import struct

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CALLS = {
    "x86_64": {"clone": 56, "clone3": 435, "socket": 41}
    | dict(ptrace=101, unshare=272, setns=308, keyctl=250, add_key=248, request_key=249, bpf=321, perf_event_open=298)
    | dict(userfaultfd=323, io_uring_setup=425, memfd_create=319, memfd_secret=447, process_vm_readv=310)
    | dict(process_vm_writev=311, shmget=29, msgget=68, mount=165, open_by_handle_at=304),
    "aarch64": {"clone": 220, "clone3": 435, "socket": 198}
    | dict(ptrace=117, unshare=97, setns=268, keyctl=219, add_key=217, request_key=218, bpf=280, perf_event_open=241)
    | dict(userfaultfd=282, io_uring_setup=425, memfd_create=279, memfd_secret=447, process_vm_readv=270)
    | dict(process_vm_writev=271, shmget=194, msgget=186, mount=40, open_by_handle_at=265),
}
"""Numbers of the refused calls by machine; clone only with new namespaces, socket only outside FAMILIES."""
FAMILIES = (1, 2, 10)  # unix, and the internet that is not there; no vsock, netlink or packet sockets


def sieve(machine: str) -> bytes:
    """The system-call filter, as instructions of the kernel's packet filter (8 bytes each)."""

    def step(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
        return struct.pack("HBBI", code, true, false, value)

    load, equal, above, masked, give = 0x20, 0x15, 0x35, 0x45, 0x06
    refuse, missing, allow, end = 0x00050001, 0x00050026, 0x7FFF0000, 0x80000000
    calls = dict(CALLS[machine])
    clone, clone3, sockets = calls.pop("clone"), calls.pop("clone3"), calls.pop("socket")
    code = [step(load, 4), step(equal, AUDIT[machine], 1, 0), step(give, end), step(load, 0)]
    code += [step(above, 0x40000000, 0, 1), step(give, refuse)]  # the x32 calls of x86
    for number in calls.values():
        code += [step(equal, number, 0, 1), step(give, refuse)]
    code += [step(equal, clone3, 0, 1), step(give, missing)]  # its flags lie in memory; libraries fall back to clone
    code += [step(equal, clone, 0, 4), step(load, 16), step(masked, 0x7E020000, 0, 1), step(give, refuse)]
    code += [step(give, allow), step(equal, sockets, 0, len(FAMILIES) + 2), step(load, 16)]
    code += [step(equal, family, len(FAMILIES) - place, 0) for place, family in enumerate(FAMILIES)]
    code += [step(give, refuse), step(give, allow)]
    return b"".join(code)
