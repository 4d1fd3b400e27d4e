"""A machine for tests, which no test has to measure."""

from stretto.hardware import Bandwidth, Cache, Gpu, Hardware, IntegerPeak, Rate

FOUND = Hardware(
    cpu="EPYC 32",
    vendor="AuthenticAMD",
    architecture="x86_64",
    cores_physical=32,
    cores_logical=64,
    cores_usable=2,
    cpu_quota=1.5,
    instruction_sets=("avx2", "fma"),
    kernels="avx2",
    caches=(Cache("L1d", 48 * 1024, 32), Cache("L3", 32 * 2**20, 4)),
    memory_total=4_000_000_000,
    memory_free=3_000_000_000,
    bandwidth=Bandwidth(Rate(10.04, 20.5), 268_435_456, Rate(30.0, 60.0), 100_000_000),
    integer_peak=IntegerPeak("avx2", Rate(83.3, 1666.6)),
    gpus=(Gpu("NVIDIA H200", 150_000_000_000, 149_000_000_000, "570.1"),),
    kernel_sets=("avx512", "avx2", "portable"),
)
