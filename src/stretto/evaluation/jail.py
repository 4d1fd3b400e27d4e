"""Runs one Python program in namespaces of its own; a script, started by `stretto.evaluation.sandbox` only.

    python -I -S jail.py '{"folder": …, "paths": […], "tmp_bytes": …, "command": […]}' < program

The program has no network, no files but Python's own (read-only) and an empty /tmp, no way to new privileges
or namespaces, and is killed with everything it started when this process ends. It is told by an exit code of
125 that the machine does not allow this; the reason stands on stderr.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
SYS_MOUNT_SETATTR = 442  # of every architecture
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
NOBODY = 65534
DEVICES = ("null", "zero", "random", "urandom")
REFUSED = 125


def call(name: str, *arguments: Any) -> None:
    """A function of libc; raises the error that it sets."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(
    source: str | None, target: str, kind: str | None = None, flags: int = 0, data: bytes | None = None
) -> None:
    """mount(2)."""
    call("mount", *(None if one is None else one.encode() for one in (source, target, kind)), flags, data)


def set_read_only(path: str, flags: int) -> None:
    """Make a mount read-only, without devices and set-user-id programs; with AT_RECURSIVE those in it too."""
    attributes = (ctypes.c_uint64 * 4)(ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    call("syscall", SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, attributes, size)


def enter_namespaces() -> bool:
    """Leave the machine's namespaces; as root, the program becomes nobody, else it is this user alone."""
    uid, gid, parent = os.getuid(), os.getgid(), os.getpid()
    is_root = os.geteuid() == 0
    read, write = os.pipe()
    helper = os.fork()  # a process outside has to write the maps
    if helper == 0:
        code = 1
        try:
            os.close(write)
            os.read(read, 1)
            both = f"0 0 1\n{NOBODY} {NOBODY} 1\n"
            maps = {"uid_map": both, "gid_map": both}
            if not is_root:
                maps = {"setgroups": "deny", "uid_map": f"{NOBODY} {uid} 1", "gid_map": f"{NOBODY} {gid} 1"}
            for name, text in maps.items():
                Path(f"/proc/{parent}/{name}").write_text(text)
            code = 0
        finally:
            os._exit(code)
    os.close(read)
    call("unshare", NAMESPACES)
    os.write(write, b".")
    os.close(write)
    if os.waitpid(helper, 0)[1] != 0:
        raise OSError("the maps of user ids cannot be written")
    Path("/proc/sys/user/max_user_namespaces").write_text("0")  # none within this one
    return is_root


def build_root(folder: str, paths: list[str], tmp_bytes: int) -> None:
    """Make `folder` the root: the paths, read-only; /dev, with four devices; /tmp, which can be written."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, b"size=1m,mode=755")
    for path in paths:
        place, source = Path(folder + path), Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            place.symlink_to(source.readlink())
            continue
        place.mkdir()
        mount(path, str(place), None, MS_BIND | MS_REC)
        set_read_only(str(place), AT_RECURSIVE)
    Path(folder, "dev").mkdir()
    for name in DEVICES:
        os.close(os.open(f"{folder}/dev/{name}", os.O_CREAT | os.O_WRONLY))
        mount(f"/dev/{name}", f"{folder}/dev/{name}", None, MS_BIND)
    for name in ("home", "tmp", "proc"):
        Path(folder, name).mkdir(exist_ok=True)
    data = f"size={tmp_bytes},nr_inodes=1000,mode=1777".encode()
    mount("tmpfs", f"{folder}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, data)
    os.chdir(folder)
    call("syscall", SYS_PIVOT_ROOT[os.uname().machine], b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")
    set_read_only("/", 0)


def main() -> None:
    """Enter the namespaces, and run the command as the second process in them."""
    settings = json.loads(sys.argv[1])
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    is_root = enter_namespaces()
    first = os.fork()
    if first:
        os.close(0)
        _, status = os.waitpid(first, 0)
        os._exit(os.waitstatus_to_exitcode(status) % 256)
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    build_root(settings["folder"], settings["paths"], settings["tmp_bytes"])
    second = os.fork()
    if second == 0:
        if is_root:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        os.execve(settings["command"][0], settings["command"], {"HOME": "/home", "TMPDIR": "/tmp"})
    while True:
        process, status = os.wait()
        if process == second:  # the end of the first process ends all others
            os._exit(os.waitstatus_to_exitcode(status) % 256)


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:  # told in one line, whatever it is
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(REFUSED)
