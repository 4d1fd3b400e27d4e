"""Machines made of files, and a native core that has measured before it was asked."""

from stretto.hardware.speed import Bandwidth, IntegerPeak, Rate, Speed

GIB = 2**30
V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"

MEASURED = Speed(
    Bandwidth(Rate(10.0, 20.0), 2**28, Rate(10.0, 20.0), 100_000_000), IntegerPeak("avx2", Rate(100.0, 200.0))
)


def server(cores=8, memory=256 * GIB, caches=False):
    """A machine of `cores` cores with two threads each: thread n and n + cores are one core."""
    cpus = "sys/devices/system/cpu"
    made = {
        f"{cpus}/online": f"0-{2 * cores - 1}",
        "proc/meminfo": f"MemTotal: {memory // 1024} kB\nMemFree: 1 kB\nMemAvailable: {memory // 2048} kB",
        "proc/cpuinfo": "\n\n".join(
            f"processor\t: {n}\nvendor_id\t: AuthenticAMD\nmodel name\t: EPYC {cores}\n"
            f"physical id\t: 0\ncore id\t\t: {n % cores}\n"
            "flags\t\t: fpu avx2 fma avx512_vnni amx_int8 avx_vnni_int8"
            for n in range(2 * cores)
        ),
    }
    for n in range(2 * cores):
        core = n % cores
        made[f"{cpus}/cpu{n}/topology/core_cpus_list"] = f"{core},{core + cores}"
        first = core // 8 * 8
        if not caches:  # many files
            continue
        for index, (level, kind, size, shared) in enumerate(
            [
                (1, "Data", "32K", f"{core},{core + cores}"),
                (1, "Instruction", "64K", f"{core},{core + cores}"),
                (2, "Unified", "1024K", f"{core},{core + cores}"),
                (3, "Unified", "32M", f"{first}-{first + 7}"),
            ]
        ):
            entry = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
            made |= {f"{cpus}/cpu{n}/cache/index{index}/{key}": value for key, value in entry.items()}
    return made


class Native:
    """A native core that has measured before it was asked."""

    def __init__(self):
        self.asked = []

    def cpu_features(self):
        return ("avx2",)

    def kernel_names(self):
        return ["avx2", "portable"]

    def dot_instructions(self):
        return ("avx2", "portable")

    def read_bandwidth(self, nbytes, threads, seconds):
        self.asked.append(nbytes)
        return [10.0 * count for count in threads]

    def integer_peak(self, instruction, threads, seconds):
        self.asked.append(instruction)
        return 100.0 * threads
