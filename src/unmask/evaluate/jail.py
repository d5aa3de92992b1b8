"""The program that stands between `sandbox` and what a model wrote: it builds a bare room and runs one program in it.

Started as `python -I -S jail.py`, on Linux, with a JSON job on its standard input; prints one JSON verdict. It knows
the standard library alone. Three processes: this one watches from outside; the second is the room's process 1, which
builds the file system; the third is the program. When process 1 ends, the kernel kills all that is left in the room.
"""

import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000  # user mnt pid net ipc uts
NOBODY = 65534
BIND, REC, PRIVATE, DETACH = 0x1000, 0x4000, 0x40000, 2
READ_ONLY, NO_SUID, NO_DEV, RECURSIVE = 1, 2, 4, 0x8000
ROOM = "/proc"  # any directory will do to hang the new file system on; this one holds no file that Python needs
DEVICES = ("null", "zero", "urandom")
TICK = 0.05

# Runs the program as the community's scorer does: with empty globals, so that `__name__` is not "__main__". The token
# is fetched only when the program has come to its end.
RUNNER = """
import os, sys
channel, read, write, leave = int(sys.argv[1]), os.read, os.write, os._exit
sys.path.append(sys.argv[2])
with open(sys.argv[3], encoding="utf-8") as file:
    source = file.read()
exec(compile(source, "program", "exec"), {})
sys.stdout.flush()
write(channel, read(channel, 64))
leave(0)
"""

MOUNT_SETATTR = 442


def check(result: int, what: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    check(LIBC.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()),
          f"mount {target}")  # fmt: skip


def prctl(*values: int) -> None:
    check(LIBC.prctl(*map(ctypes.c_ulong, (*values, 0, 0, 0, 0)[:5])), f"prctl {values[0]}")


def restrict(path: str, attributes: int) -> None:
    """Set mount attributes on everything mounted at and below `path`."""
    sets = struct.pack("QQQQ", attributes, 0, 0, 0)
    check(LIBC.syscall(MOUNT_SETATTR, -100, path.encode(), RECURSIVE, sets, len(sets)), "mount_setattr")


def needed() -> list[str]:
    """Paths that this Python is made of: program, standard library, the directories of shared libraries."""
    with open("/proc/self/maps") as file:
        mapped = {line.split(maxsplit=5)[5].strip() for line in file if line.count("/")}
    libraries = {os.path.dirname(path) for path in mapped if ".so" in os.path.basename(path)}
    paths = {os.path.realpath(sys.executable), os.path.dirname(os.path.realpath(os.__file__)), *libraries}
    if os.path.exists("/etc/ld.so.cache"):
        paths.add("/etc/ld.so.cache")
    return sorted(paths)


def loader(program: str) -> str:
    """Path of the dynamic loader that a 64-bit ELF program names; empty for none."""
    with open(program, "rb") as file:
        head = file.read(1 << 16)
    start, (size, count) = struct.unpack_from("<Q", head, 32)[0], struct.unpack_from("<HH", head, 54)
    for at in range(start, start + size * count, size):
        if struct.unpack_from("<I", head, at)[0] == 3:
            offset, length = struct.unpack_from("<Q", head, at + 8)[0], struct.unpack_from("<Q", head, at + 32)[0]
            return head[offset : offset + length].rstrip(b"\0").decode()
    return ""


def bind(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, flags=BIND | REC)


def build(job: dict[str, Any]) -> None:
    """Make the room the root directory: what Python needs, read-only; `/tmp`, empty; three devices."""
    paths = needed()
    python = os.path.realpath(sys.executable)
    mount("none", "/", flags=REC | PRIVATE)
    mount("tmpfs", ROOM, "tmpfs", NO_SUID | NO_DEV, "mode=755,size=16m")
    for name in ("lib", "lib32", "lib64"):
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{ROOM}/{name}")
    done: list[str] = []
    for path in paths:
        if not any(path.startswith(f"{above}/") for above in done):
            bind(path, ROOM + path)
            done.append(path)
    if first := loader(python):
        place = ROOM + os.path.join(os.path.realpath(os.path.dirname(first)), os.path.basename(first))
        if not os.path.exists(place):
            bind(os.path.realpath(first), place)
    for name, path in job["packages"].items():
        bind(path, f"{ROOM}/packages/{name}")
    for name in ("tmp", "dev"):
        os.makedirs(f"{ROOM}/{name}", exist_ok=True)
    for name in DEVICES:
        os.close(os.open(f"{ROOM}/dev/{name}", os.O_CREAT, 0o644))
    with open(f"{ROOM}/program.py", "w", encoding="utf-8") as file:
        file.write(job["program"])
    restrict(ROOM, READ_ONLY | NO_SUID | NO_DEV)
    hidden = f"{ROOM}{os.path.dirname(os.path.realpath(os.__file__))}/site-packages"
    if os.path.isdir(hidden):
        mount("tmpfs", hidden, "tmpfs", READ_ONLY, "size=4k")
    for name in DEVICES:
        if os.path.exists(f"/dev/{name}"):
            mount(f"/dev/{name}", f"{ROOM}/dev/{name}", flags=BIND)
    mount("tmpfs", f"{ROOM}/tmp", "tmpfs", NO_SUID | NO_DEV, f"mode=1777,size={job['disk']},nr_inodes=4096")
    os.chdir(ROOM)
    check(LIBC.pivot_root(b".", b"."), "pivot_root")
    check(LIBC.umount2(b".", DETACH), "umount")
    os.chdir("/tmp")


def limit(job: dict[str, Any], names: tuple[str, ...]) -> None:
    values = {
        "AS": (job["memory"], job["memory"]),
        "CPU": (job["cpu"], job["cpu"] + 1),
        "FSIZE": (job["disk"], job["disk"]),
        "NPROC": (job["processes"] + 2, job["processes"] + 2),
        "NOFILE": (64, 64),
        "CORE": (0, 0),
        "MSGQUEUE": (0, 0),
        "MEMLOCK": (0, 0),
    }
    for name in names or values:
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), values[name])


def become_program(job: dict[str, Any], mapped: bool, channel: int, output: int) -> None:
    """In the third process: give up everything and turn into the program's Python. All other files close at exec."""
    if mapped:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    LIBC.syscall(job["keyctl"], 1, None)  # a key ring of its own
    limit(job, ())
    prctl(38, 1)  # no new privileges
    code = ctypes.create_string_buffer(bytes.fromhex(job["filter"]))
    filter = ctypes.create_string_buffer(struct.pack("H6xP", len(code) // 8, ctypes.addressof(code)))
    prctl(22, 2, ctypes.addressof(filter))  # seccomp
    start(job, channel, output, "/packages", "/program.py")


def start(job: dict[str, Any], channel: int, output: int, packages: str, program: str) -> None:
    for target, source in enumerate((os.open("/dev/null", os.O_RDONLY), output, output)):
        os.dup2(source, target)
    os.set_inheritable(channel, True)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    python = os.path.realpath(sys.executable)
    words = [python, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", RUNNER, str(channel), packages, program]
    os.execve(python, words, job["environment"])


def process_one(job: dict[str, Any], mapped: bool, channel: int, output: int, report: int) -> None:
    """In the second process: build the room, start the program, report how it ended. Does not return."""
    try:
        prctl(1, signal.SIGKILL)  # dies with the watcher
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        LIBC.sethostname(b"sandbox", ctypes.c_size_t(7))
        build(job)
        prctl(4, 0)  # not to be traced or read by the program
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            become_program(job, mapped, channel, output)
        os.close(channel)
        os.close(output)
        wait(child, report)
    except BaseException as error:
        os.write(report, f"missing {error}\n".encode())
    os._exit(0)


def wait(child: int, report: int) -> None:
    """Until the program ends; what it left behind is reaped on the way."""
    done = -1
    while done != child:
        done, status, usage = os.wait4(-1, 0)
    os.write(report, f"ended {os.waitstatus_to_exitcode(status)} {usage.ru_utime + usage.ru_stime}\n".encode())


def enter() -> bool:
    """Move into namespaces of our own. True where the program gets another user (we are root), else it keeps ours."""
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    mapped = os.geteuid() == 0 and any(first <= NOBODY < first + count for first, _, count in ranges)
    if mapped:
        os.setgroups([])
    own, user, group, (heard, said) = os.getpid(), os.geteuid(), os.getegid(), os.pipe()
    helper = os.fork()
    if helper == 0:  # it stays outside, where the map of users may be written
        os.close(said)
        os.read(heard, 1)
        for name, value in (("gid", group), ("uid", user)):
            if not mapped and name == "gid":
                write(f"/proc/{own}/setgroups", "deny")
            write(f"/proc/{own}/{name}_map", f"0 0 1\n{NOBODY} {NOBODY} 1" if mapped else f"{NOBODY} {value} 1")
        os._exit(0)
    try:
        check(LIBC.unshare(NAMESPACES), "unshare")
    finally:
        os.close(said)
        status = os.waitpid(helper, 0)[1]
    if status:
        raise OSError("the users of the new namespace could not be mapped")
    return mapped


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def resident(proc: int, root: int) -> int:
    """Bytes of memory that a process and all its descendants hold. proc: a descriptor of /proc as the host has it."""
    total, open_ones = 0, [str(root)]
    while open_ones:
        pid = open_ones.pop()
        try:
            total += int(text(proc, f"{pid}/statm").split()[1]) * resource.getpagesize()
            tasks = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
            try:
                for task in os.listdir(tasks):
                    open_ones += text(proc, f"{pid}/task/{task}/children").split()
            finally:
                os.close(tasks)
        except (OSError, IndexError):  # it has ended meanwhile
            continue
    return total


def text(proc: int, path: str) -> str:
    with open(os.open(path, os.O_RDONLY, dir_fd=proc)) as file:
        return file.read()


def descendants_end(child: int, room: bool) -> None:
    """Kill the program with all that it started: the room's process 1, else the process group."""
    try:
        if room:
            os.kill(child, signal.SIGKILL)
        else:
            os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)


class Watch:
    """What is known of a run: the kept output, the end that was seen first."""

    def __init__(self, job: dict[str, Any], child: int, proc: int, output: int, channel: socket.socket, report: int):
        self.job, self.child, self.proc = job, child, proc
        self.output, self.channel, self.report = output, channel, report
        self.token = os.urandom(16).hex().encode()
        self.kept, self.dropped, self.end = b"", 0, {}  # type: tuple[bytes, int, dict[str, Any]]

    def run(self) -> dict[str, Any]:
        try:
            self.channel.send(self.token)
        except ConnectionError:  # it has ended already; the report says how
            pass
        deadline = time.monotonic() + self.job["wall"]
        watched: list[Any] = [self.output, self.channel, self.report]
        looked = 0.0
        while not self.end:
            for ready in select.select(watched, [], [], TICK)[0]:
                if ready == self.output:
                    if not self.read_output():
                        watched.remove(self.output)
                elif ready == self.channel:
                    self.read_channel()
                    watched.remove(self.channel)
                elif not self.end:
                    self.read_report()
            now = time.monotonic()
            if self.end or now < looked + TICK:
                continue
            looked = now
            if now > deadline:
                self.end = {"reason": f"wall time: more than {self.job['wall']:g} s", "timed": True}
            elif self.proc >= 0 and resident(self.proc, self.child) > self.job["memory"]:
                self.end = {"reason": f"memory: more than {self.job['memory']} bytes in all"}
        while select.select([self.output], [], [], 0)[0] and self.read_output():
            pass
        return self.end

    def read_output(self) -> int:
        data = os.read(self.output, 65536)
        room = self.job["output"] - len(self.kept)
        self.kept += data[:room]
        self.dropped += max(0, len(data) - room)
        return len(data)

    def read_channel(self) -> None:
        try:
            said = self.channel.recv(256)
        except ConnectionError:  # it ended, its token unread
            return
        if said:
            own = said == self.token
            self.end = {"passed": own, "reason": "passed" if own else "wrote to the sandbox's own channel"}

    def read_report(self) -> None:
        line = os.read(self.report, 4096).decode().partition("\n")[0]
        if line.startswith("missing"):
            self.end = {"missing": line.removeprefix("missing ")}
        elif line:
            _, code, cpu = line.split()
            timed = int(code) == -signal.SIGXCPU or int(code) == -signal.SIGKILL and float(cpu) >= self.job["cpu"]
            self.end = {"exit": int(code), "timed": timed}
        else:
            self.end = {"reason": "the sandbox was ended"}


def run(job: dict[str, Any]) -> dict[str, Any]:
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY) if job["room"] else -1
    mapped = enter() if job["room"] else False
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (heard, output), (told, report) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        if job["room"]:
            process_one(job, mapped, theirs.fileno(), output, report)
        weaker(job, theirs.fileno(), output, report)
    for each in (output, report):
        os.close(each)
    theirs.close()
    watch = Watch(job, child, proc, heard, ours, told)
    try:
        verdict = watch.run()
    finally:
        descendants_end(child, job["room"])
    return {**verdict, "output": watch.kept.decode(errors="replace"), "dropped": watch.dropped}


def weaker(job: dict[str, Any], channel: int, output: int, report: int) -> None:
    """In the second process, without a room: a session of its own, the limits that need no namespace."""
    try:
        os.setsid()
        child = os.fork()
        if child == 0:
            limit(job, ("AS", "CPU", "FSIZE", "NOFILE", "CORE"))
            os.chdir(job["directory"])
            packages = os.path.dirname(next(iter(job["packages"].values()), ""))
            start(job, channel, output, packages, job["file"])
        os.close(channel)
        os.close(output)
        wait(child, report)
    except BaseException as error:
        os.write(report, f"missing {error}\n".encode())
    os._exit(0)


def main() -> None:
    job = json.load(sys.stdin)
    try:
        if sys.platform == "linux":
            prctl(1, signal.SIGKILL)  # dies with the thread that started it
        verdict = run(job)
    except OSError as error:
        verdict = {"missing": str(error)}
    print(json.dumps(verdict))


if __name__ == "__main__":
    main()
