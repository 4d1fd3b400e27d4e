"""The suites of the engine, the cache and parallel tokens on a GPU, and the backend's own tests.

    python scripts/check_cuda.py                one part after the other
    python scripts/check_cuda.py --part 2       one of them; each ends within 8 minutes
    python scripts/check_cuda.py --device cpu   without a GPU, slowly

Each file of tests is a process of its own; several share the GPU. Counts and seconds are printed, and written
with the failures to a folder, so that parts which ran one by one add up to a summary.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
PART_SECONDS = 460
LONGEST_FIRST = (
    "test_attend_kernel",
    "test_architectures",
    "test_lean",
    "test_queued",
    "test_sampling",
    "test_recurrent",
    "test_products",
    "test_soak",
    "test_composition",
    "test_together",
    "test_guided",
    "test_drafts",
)

# The backend's own tests build their backends themselves; the suites get theirs by tests/other_backend.py.
OWN = ("tests/backends/torch",)
PARTS = {
    1: OWN,
    2: ("tests/engine", "tests/cache"),
    3: ("tests/parallel", "tests/backends/test_prefix_bits.py", "tests/backends/test_batch_bits.py"),
    4: ("tests/sampling", "tests/structured/test_guided.py", "tests/vision"),
}
# About encoders, files, threads and kernels of the CPU, which no other backend changes.
LEFT_OUT = (
    "vision/test_encoders.py",
    "vision/test_mmproj.py",
    "vision/test_commands.py",
    "sampling/test_rows.py",
    "parallel/test_mixture.py",
)


@dataclass
class Report:
    """The result of one file of tests."""

    name: str
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    problems: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", type=int, choices=PARTS, help="only this part")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--processes", type=int, default=max(1, min(12, (os.cpu_count() or 1) * 3 // 4)))
    parser.add_argument("--seconds", type=int, default=PART_SECONDS, help="that a part may take")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "check_cuda")
    options = parser.parse_args()
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for part in [options.part] if options.part else PARTS:
        reports, seconds = run_part(part, options)
        failed += show_part(part, reports, seconds)
        write_part(options.out / f"part{part}.json", options.device, reports, seconds)
    show_summary(options.out)
    return 1 if failed else 0


def run_part(part: int, options: argparse.Namespace) -> tuple[list[Report], float]:
    """The reports of a part's files, in order, and the seconds they took together."""
    begin = time.monotonic()
    files = sorted(files_of(PARTS[part]), key=lambda path: not path.stem.startswith(LONGEST_FIRST))
    with ThreadPoolExecutor(options.processes) as pool:
        waiting = [pool.submit(run_file, path, part, options, begin + options.seconds) for path in files]
        return [each.result() for each in waiting], time.monotonic() - begin


def files_of(paths: tuple[str, ...]) -> list[Path]:
    """The files of tests below some folders."""
    found = [file for path in paths for file in sorted((ROOT / path).rglob("test_*.py"))]
    found += [ROOT / path for path in paths if path.endswith(".py")]
    return [file for file in found if not file.as_posix().endswith(LEFT_OUT)]


def run_file(path: Path, part: int, options: argparse.Namespace, deadline: float) -> Report:
    """Run one file of tests by pytest, until the deadline."""
    report = Report(path.relative_to(ROOT).as_posix())
    begin = time.monotonic()
    if begin >= deadline:
        return failure(report, "was not begun: the part's time is over")
    stem = report.name.removesuffix(".py").replace("/", "_")
    results, log = options.out / f"{stem}.xml", options.out / f"{stem}.log"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, f"--junitxml={results}"],
            cwd=ROOT,
            env=environment(part, options),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(deadline - begin)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
    report.seconds = time.monotonic() - begin
    if results.exists():
        read_results(results, report)
    if code is None:
        failure(report, f"was stopped after {report.seconds:.0f} s: the part's time is over")
    elif code not in (0, 1, 5):
        failure(report, f"pytest ended with {code}: {last_line(log)}")
    print(f"{report.seconds:6.1f} s  {counts(report):40} {report.name}", flush=True)
    return report


def environment(part: int, options: argparse.Namespace) -> dict[str, str]:
    """The environment of a process: one thread each, and the backend that suites are to run on."""
    own = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "STRETTO_TEST_DEVICE": options.device}
    if PARTS[part] != OWN:
        own["STRETTO_TEST_BACKEND"] = options.backend
    return {name: value for name, value in os.environ.items() if name != "STRETTO_TEST_BACKEND"} | own


def read_results(path: Path, report: Report) -> None:
    """Add the counts of pytest's file of results."""
    for case in ET.parse(path).iter("testcase"):
        kinds = {child.tag: child for child in case}
        bad = kinds.get("failure", kinds.get("error"))
        if bad is not None:
            report.failed += 1
            report.problems.append(f"{case.get('name')}: {first_line(bad.get('message'))}")
        elif "skipped" in kinds:
            report.skipped += 1
            report.reasons.append(first_line(kinds["skipped"].get("message")))
        else:
            report.passed += 1


def failure(report: Report, problem: str) -> Report:
    report.failed += 1
    report.problems.append(problem)
    return report


def first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0][:160]


def last_line(path: Path) -> str:
    return first_line((path.read_text(errors="replace").strip() or "no output").splitlines()[-1])


def counts(report: Report) -> str:
    return f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped"


def total(name: str, reports: list[Report], seconds: float) -> Report:
    return Report(
        name,
        seconds,
        sum(each.passed for each in reports),
        sum(each.failed for each in reports),
        sum(each.skipped for each in reports),
    )


def show_part(part: int, reports: list[Report], seconds: float) -> int:
    """Print what failed, why tests were skipped, and the counts; return the number of failures."""
    reasons: dict[str, int] = {}
    for each in reports:
        for reason in each.reasons:
            reasons[reason] = reasons.get(reason, 0) + 1
        for problem in each.problems:
            print(f"FAILED {each.name}: {problem}")
    for reason, n in sorted(reasons.items()):
        print(f"skipped {n}: {re.sub('^Skipped: ', '', reason)}")
    whole = total(f"part {part}", reports, seconds)
    print(f"part {part}: {counts(whole)} in {seconds:.0f} s", flush=True)
    return whole.failed


def write_part(path: Path, device: str, reports: list[Report], seconds: float) -> None:
    whole = total(path.stem, reports, seconds)
    data = {"device": device, "whole": asdict(whole), "files": [asdict(each) for each in reports]}
    path.write_text(json.dumps(data, indent=1))


def show_summary(folder: Path) -> None:
    """The counts of all parts whose results are there."""
    parts = [Report(**json.loads(path.read_text())["whole"]) for path in sorted(folder.glob("part*.json"))]
    whole = total("all", parts, sum(each.seconds for each in parts))
    for each in (*parts, whole):
        print(f"{each.name:6} {counts(each):44} {each.seconds:6.0f} s")


if __name__ == "__main__":
    sys.exit(main())
