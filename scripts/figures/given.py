"""Numbers with a unit that are no measurements, by the reason why and by page: unmarked.py lets them pass.

A line that its page no longer needs is a fault, so the lists stay as short as they can be.
"""

LIMIT = "a limit, timeout, default or threshold, which the code sets"
SIZE = "the size of a file, a buffer, a vector, a vocabulary or a list of classes, which anyone can count"
CALCULATED = "follows from the numbers beside it, or is an example to calculate with"
DEFINITION = "part of a definition: a share, a level, a goal, a port, or what a test does"
TOLERANCE = "a bound that the tests or the script named beside it assert"
PICTURE = "shown in a picture that a script makes"

GIVEN: dict[str, dict[str, tuple[str, ...]]] = {
    LIMIT: {
        "docs/explanation/decisions.md": ("1e-6",),
        "docs/explanation/engine.md": ("100 ms",),
        "docs/explanation/kernels.md": ("1.1 ×",),
        "docs/explanation/routing.md": ("10 %",),
        "docs/explanation/security.md": ("60 s", "10 s", "120 s", "5 s", "2 s"),
        "docs/explanation/threads.md": ("5 µs", "30 ms", "60 %", "1 s"),
        "docs/how-to/deploy.md": ("10 seconds",),
        "docs/how-to/evaluation.md": ("30 seconds", "10 seconds"),
        "docs/how-to/export.md": ("1.5 GB",),
        "docs/reference/grammars.md": ("5 seconds",),
        "docs/how-to/tasks/read.md": ("736",),
        "docs/how-to/tasks/transcribe.md": (
            "28 seconds",
            "30 seconds",
            "64 seconds",
            "60 %",
            "6.5 tokens a second",
            "192",
        ),
        "docs/reference/commands.md": ("80 %", "1.5 GB"),
        "docs/reference/endpoints.md": ("1e-06",),
        "docs/reference/metrics.md": ("15 minutes",),
        "docs/reference/page.md": ("20 s", "90 %", "50 %", "15 %", "5 %", "3 %", "15 minutes"),
        "docs/explanation/page.md": ("240 KB", "300 ms"),
        "docs/reference/server.md": ("80 %", "10 seconds", "600 s", "10 s", "15 minutes", "64 of 1,000"),
        "docs/reference/sounds.md": ("30 seconds", "30 minutes"),
        "docs/reference/terminal.md": ("90 %", "50 %"),
        "docs/tutorials/serving.md": ("15 minutes",),
        "docs/tutorials/structured-extraction.md": ("1,088",),
    },
    SIZE: {
        "README.md": ("98 MB",),
        "docs/explanation/cache.md": ("46 MB",),
        "docs/explanation/step.md": ("98 MB",),
        "docs/reference/bench.md": ("49,152",),
        "docs/how-to/tasks/classify-files.md": ("214",),
        "docs/how-to/tasks/segment.md": ("176 MB",),
        "docs/how-to/test-without-a-model.md": ("98 MB",),
        "docs/reference/api/hardware.md": ("100 MB",),
        "docs/reference/devices.md": ("100 MB",),
        "docs/reference/models.md": ("98.4 MB", "253.1 MB", "274.3 MB", "491.4 MB", "1.1 GB", "93 MB"),
        "docs/reference/supported.md": ("384", "214", "768"),
        "docs/tutorials/first-five-minutes.md": ("98 MB", "1.1 GB"),
    },
    CALCULATED: {
        "docs/explanation/kernels.md": ("16 cycles", "Of 16"),
        "docs/explanation/precision.md": ("254",),
        "docs/how-to/choose-a-model.md": (
            *("0.7 GB", "2.5 GB", "5.5 GB", "18 GB", "42 GB"),
            *("40 GB/s", "5 GB", "8 tokens a second"),
        ),
        "docs/how-to/size-replicas.md": ("60 s", "0.46 s", "0.03 s", "200 a second"),
        "docs/how-to/tasks/detect.md": ("3 ×",),
        "docs/reference/cuda.md": ("131 kB", "1.1 GB"),
        "docs/reference/devices.md": ("80 GMAC/s",),
        "docs/reference/models.md": ("23 kB", "12.2 kB", "47 MB", "25 MB"),
    },
    DEFINITION: {
        "docs/reference/sounds.md": ("50 positions a second",),
        "docs/how-to/evaluation.md": ("95 %",),
        "docs/explanation/decisions.md": ("95 %",),
        "docs/explanation/engine.md": ("2 %",),
        "docs/reference/bench.md": ("100 %",),
        "docs/explanation/replica-routing.md": ("20 s", "214"),
        "docs/how-to/replicas.md": ("8404", "9101"),
        "docs/reference/replicas.md": ("8404", "9101"),
        "docs/how-to/tune-cpu.md": ("70 %",),
        "docs/reference/commands.md": ("95 %",),
        "docs/explanation/server.md": ("150 µs",),
    },
    TOLERANCE: {
        "docs/reference/parallel.md": ("1e-4", "1e-6"),
        "docs/explanation/precision.md": ("0.001", "0.00001", "Of 6,000"),
        "docs/explanation/vision.md": ("2e-6", "5e-5", "2e-4"),
        "docs/reference/export.md": ("2e-5",),
        "docs/how-to/inside.md": ("1e-4", "5e-3"),
        "docs/how-to/tasks/classify-files.md": ("2e-5",),
        "docs/how-to/tasks/embed.md": ("1e-5", "2e-5", "1e-3"),
        "docs/how-to/tasks/static-embeddings.md": ("2e-6",),
        "docs/reference/folders.md": ("1e-4",),
        "docs/reference/sounds.md": ("1e-4",),
        "docs/reference/models.md": ("5e-5", "2e-3", "1e-2"),
        "docs/reference/onnx.md": ("3e-5", "1e-5"),
    },
    PICTURE: {
        "docs/explanation/parallel.md": ("0.072", "0.012"),
        "docs/reference/terminal.md": ("122 of 8,192", "44 of the 61"),
    },
}
