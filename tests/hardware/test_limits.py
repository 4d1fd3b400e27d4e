"""How much of a machine a process may use, in and out of containers."""

import os

import pytest
from machines import GIB, V2_MOUNT, server

from stretto import hardware
from stretto.hardware import cpu, limits
from stretto.hardware.cpu import Cache


def usable(root, allowed=None):
    return hardware.cores_at(root, allowed)


# -- cores and their limits --


def test_a_server(tree):
    found = cpu.read(tree(server(32, caches=True)))
    assert (found.name, found.vendor, found.cores, found.threads) == ("EPYC 32", "AuthenticAMD", 32, 64)
    assert found.flags == ("avx2", "fma", "avx512vnni", "amx-int8")
    assert found.caches == (Cache("L1d", 2**15, 32), Cache("L2", 2**20, 32), Cache("L3", 2**25, 4))
    assert usable(tree({})) == 32


def test_hyperthreads_count_once_among_the_allowed(tree):
    root = tree(server())
    assert usable(root, frozenset(range(16))) == 8
    assert usable(root, frozenset({0, 1, 8, 9})) == 2
    assert usable(root, frozenset({0, 1, 2, 3})) == 4
    assert usable(root, frozenset({0, 999})) == 2  # one that is not described: every processor counts


@pytest.mark.parametrize(
    ("written", "share", "cores"),
    [
        ("200000 100000", 2.0, 2),
        ("150000 100000", 1.5, 2),
        ("10000 100000", 0.1, 1),
        ("9900000 100000", 99.0, 8),
        ("max 100000", None, 8),
    ],
)
def test_a_container_with_a_quota(tree, written, share, cores):
    root = tree(
        server()
        | {
            "proc/self/cgroup": "0::/",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/cpu.max": written,
        }
    )
    assert limits.quota(root) == share
    assert usable(root, frozenset(range(16))) == cores


def test_the_limits_of_all_groups_around_count(tree):
    root = tree(
        {
            "proc/self/cgroup": "0::/user.slice/mine/inner",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/user.slice/cpu.max": "300000 100000",
            "sys/fs/cgroup/user.slice/mine/cpu.max": "800000 100000",
            "sys/fs/cgroup/user.slice/mine/inner/cpu.max": "max 100000",
            "sys/fs/cgroup/other/cpu.max": "100000 100000",
        }
    )
    assert limits.quota(root) == 3.0


def test_groups_of_version_1(tree):
    # Without a namespace of its own a container's path is the machine's, and the mount begins inside it.
    root = tree(
        server()
        | {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc",
            "proc/self/mountinfo": (
                "40 30 0:30 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
                "41 30 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"
            ),
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(8 * GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(5 * GIB),
            "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {2 * GIB}",
        }
    )
    assert limits.quota(root) == 4.0
    assert usable(root, frozenset(range(16))) == 4
    assert limits.memory(root) == (8 * GIB, 5 * GIB)


def test_version_1_without_limits(tree):
    root = tree(
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu:/",
            "proc/self/mountinfo": "40 30 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
            "41 30 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000",
        }
    )
    assert limits.quota(root) is None
    assert limits.memory(root) == (None, None)


def test_a_path_outside_the_mount_leaves_the_mount(tree):
    root = tree(
        {
            "proc/self/cgroup": "0::/../../elsewhere",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/cpu.max": "100000 100000",
        }
    )
    assert limits.quota(root) == 1.0


# -- memory --


def test_the_memory_of_a_container(tree):
    contents = {
        "proc/self/cgroup": "0::/",
        "proc/self/mountinfo": V2_MOUNT,
        "sys/fs/cgroup/memory.max": str(4 * GIB),
        "sys/fs/cgroup/memory.current": str(3 * GIB),
        "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7",
    }
    assert limits.memory(tree(server() | contents)) == (4 * GIB, 2 * GIB)
    assert limits.memory(tree({"sys/fs/cgroup/memory.max": "max"})) == (256 * GIB, 128 * GIB)
    assert limits.memory(tree({"sys/fs/cgroup/memory.max": str(GIB)})) == (GIB, 0)


def test_a_kernel_without_the_available_memory(tree):
    root = tree({"proc/meminfo": "MemTotal: 100 kB\nMemFree: 10 kB\nBuffers: 5 kB\nCached: 20 kB"})
    assert limits.memory(root) == (102_400, 35 * 1024)


# -- where nothing is told, or nonsense --


def test_nothing_is_told(tmp_path):
    root = tmp_path / "nothing"
    found = cpu.read(root)
    assert (found.vendor, found.cores, found.caches, found.flags) == (None, None, (), ())
    assert found.name
    assert found.threads == os.cpu_count()
    assert limits.memory(root) == (None, None)
    assert limits.quota(root) is None
    assert usable(root) == os.cpu_count()
    assert usable(root, frozenset({3, 5, 7})) == 3


@pytest.mark.parametrize(
    "garbage", [b"", b"\xff\xfe\0", b"::::\n: - -\n", b"-1 0\n", b"9" * 5000, b"1 2 3 - cgroup2"]
)
def test_garbage_everywhere(tree, garbage):
    names = [*server(cores=1), "proc/self/cgroup", "proc/self/mountinfo"]
    names += [f"sys/fs/cgroup/{name}" for name in ("cpu.max", "memory.max", "memory.current", "memory.stat")]
    root = tree(dict.fromkeys(names, garbage))
    assert cpu.read(root).threads >= 1
    assert usable(root, frozenset({0, 1})) in (1, 2)
    limits.memory(root)
    assert limits.quota(root) is None


def test_directories_where_files_should_be(tree):
    root = tree({f"{name}/file": "" for name in ("proc/cpuinfo", "proc/meminfo", "proc/self/mountinfo")})
    assert limits.memory(root) == (None, None)
    assert limits.quota(root) is None
    assert cpu.read(root).cores is None
