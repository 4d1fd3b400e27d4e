"""Checks the inner loops of the ARM kernels without an ARM machine: cycles that a processor model predicts.

    python scripts/check_arm_loops.py             compare with the recorded ceilings
    python scripts/check_arm_loops.py --record    measure again and write scripts/arm_loops.json

The kernel files are compiled for aarch64 with the flags of CMakeLists.txt. Every innermost loop with at least
eight products in it (`sdot`, `smmla` or `fmla`) is looked up in the disassembly, and llvm-mca predicts its
cycles an iteration on a Neoverse N1. A loop fails if it takes more than three cycles beyond its ceiling, or
if one with integer products accesses the stack or moves vectors more often than recorded (mostly never: each
takes the place of a product). Loops are named by the function that the debug information says they come from,
wherever it was inlined; of several copies the worst counts.

A prediction is no measurement: LLVM 14's model of the N1 is that of a Cortex-A57. It is near enough to show
when a change makes a loop worse. Other versions of LLVM have other models, and other compilers make other
loops, so ceilings hold for the versions that recorded them, and with others nothing is checked.

Exit status: 0 if all is well or nothing could be checked (it says why), 1 if a loop got worse.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "scripts" / "arm_loops.json"
BUILD = ROOT / "build" / "arm"
COMPILERS = ("aarch64-linux-gnu-g++", "g++")  # the second one where it compiles for aarch64
LLVM = ("llvm-mca", "llvm-objdump", "llvm-symbolizer")
KERNELS = {"neon": "armv8.2-a+dotprod+fp16", "i8mm": "armv8.2-a+dotprod+fp16+i8mm"}  # as in CMakeLists.txt
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-fno-schedule-insns", "-fno-schedule-insns2"]
FLAGS += ["-g", "-fno-var-tracking", "-fno-var-tracking-assignments", "-Icsrc", "-shared", "-nostdlib"]
CPU, FEATURES = "neoverse-n1", "+dotprod,+fullfp16,+i8mm"
ITERATIONS = 100
SLACK_CYCLES = 3.0
LEAST_PRODUCTS = 8  # of an inner loop that counts

INTEGER_PRODUCTS = ("sdot", "smmla")
FLOAT_PRODUCTS = ("fmla",)
# Functions of an inline chain that only wrap a loop's products.
WRAPPERS = re.compile(
    r"(operator|each|each_of|dot|dot_sixteen|scale|loaded|fma|mul|add|weights|\w+_eight|v\w+_[sufp]\d+)\b"
)


@dataclass(frozen=True)
class Instruction:
    """One line of a disassembly: `fmla v0.4s, v1.4s, v2.4s`; target is where a branch goes."""

    address: int
    mnemonic: str
    operands: str
    target: int | None = None

    @property
    def touches_stack(self) -> bool:
        """Whether it reads or writes what was spilled."""
        return "[sp" in self.operands

    @property
    def moves_vector(self) -> bool:
        """Whether it copies a whole vector register."""
        return self.mnemonic == "mov" and re.match(r"v\d+\.\d+b, v\d+\.\d+b$", self.operands) is not None


Loop = list[Instruction]


@dataclass(frozen=True)
class Function:
    """A function of a disassembly, with its demangled name."""

    name: str
    instructions: Loop


@dataclass(frozen=True)
class Measured:
    """A loop as it was found: predicted cycles an iteration, stack accesses and vector moves in it."""

    cycles: float
    stack: int = 0
    moves: int = 0

    def worst(self, other: Measured) -> Measured:
        """The higher figure of each."""
        return Measured(*map(max, astuple(self), astuple(other)))


def parse_disassembly(text: str) -> list[Function]:
    """The functions of llvm-objdump's output."""
    functions: list[Function] = []
    for line in text.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            functions.append(Function(head[1], []))
        elif functions and (found := re.match(r"\s*([0-9a-f]+):\s+(\S+)\s*(.*)$", line)):
            operands = re.sub(r"\s+", " ", re.sub(r"//.*| <.*>", "", found[3])).strip()
            is_branch = re.match(r"(b|b\..*|cbn?z|tbn?z)$", found[2])
            target = int(operands.split(" ")[-1], 16) if is_branch else None
            functions[-1].instructions.append(Instruction(int(found[1], 16), found[2], operands, target))
    return functions


def inner_loops(function: Loop) -> Iterator[Loop]:
    """From the target of a branch backwards to the last such branch, where no other loop is inside."""
    at = {instruction.address: i for i, instruction in enumerate(function)}
    ends: dict[int, int] = {}
    for i, instruction in enumerate(function):
        if instruction.target is not None and at.get(instruction.target, len(function)) <= i:
            ends[at[instruction.target]] = i
    for begin, end in ends.items():
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in ends.items()):
            yield function[begin : end + 1]


def count(loop: Loop, mnemonics: Iterable[str]) -> int:
    """How many of its instructions are one of these."""
    return sum(instruction.mnemonic in mnemonics for instruction in loop)


def is_hot(loop: Loop) -> bool:
    """Whether it has enough products to be one of those that decide."""
    return max(count(loop, INTEGER_PRODUCTS), count(loop, FLOAT_PRODUCTS)) >= LEAST_PRODUCTS


def assembly_of(loop: Loop) -> str:
    """What llvm-mca reads: every branch leads back to the start."""
    lines = ["start:"]
    for i in loop:
        operands = re.sub(r"0x[0-9a-f]+$", "start", i.operands) if i.target is not None else i.operands
        lines.append(f"{i.mnemonic} {operands}")
    return "\n".join(lines) + "\n"


def predict_cycles(loop: Loop) -> float:
    """Cycles an iteration, if nothing is missing in the caches."""
    command = ["llvm-mca", "-mtriple=aarch64", f"-mcpu={CPU}", f"-mattr={FEATURES}"]
    command.append(f"-iterations={ITERATIONS}")
    done = subprocess.run(command, input=assembly_of(loop), capture_output=True, text=True, check=False)
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    if not found or "error:" in done.stderr:
        raise SystemExit(f"llvm-mca could not read a loop:\n{done.stderr}\n{assembly_of(loop)}")
    return round(int(found[1]) / ITERATIONS, 1)


def name_of(frames: list[str], function: str, enums: dict[str, list[str]]) -> str:
    """The innermost function of an inline chain that is more than a wrapper, and the layout it multiplies.

    Debug information has no class names: a layout is found in the chain, or in the name of the function.
    """

    def spelt(name: str) -> str:
        name = re.sub(r"(\(anonymous namespace\)|{anonymous}|<unnamed>)::", "", name)
        name = re.sub(r"\(([\w:]+)\)(\d+)", lambda m: enums[m[1].split("::")[-1]][int(m[2])], name)
        return re.sub(r"\b(\w+::)+(?=k[A-Z])", "", name)

    def short(name: str) -> str:  # without result, qualifiers and parameters
        found = re.search(r"(\w+(?:<[\w, ]*>)?)(?=\(|$)", re.sub(r"(\d)ul\b", r"\1", spelt(name)))
        return found[1] if found else name

    names = [short(frame) for frame in frames]
    name = next((name for name in names if not WRAPPERS.match(name)), names[-1])
    layout = re.search(rf"\b({'|'.join(enums['Layout'])})\b", " ".join(map(spelt, [*frames, function])))
    return f"{layout[1]} {name}" if layout else name


def enumerators(sources: Iterable[Path]) -> dict[str, list[str]]:
    """Every `enum class` and the names in it: a demangled name has their numbers."""
    found: dict[str, list[str]] = {}
    for source in sources:
        text = re.sub(r"//.*", "", source.read_text(encoding="utf-8"))
        for name, body in re.findall(r"enum class (\w+) *{([^}]*)}", text):
            found[name] = [entry.split("=")[0].strip() for entry in body.split(",") if entry.strip()]
    return found


def output_of(*command: str, text: str | None = None) -> str:
    """What a program prints."""
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


def frames_at(library: Path, addresses: list[int]) -> list[list[str]]:
    """For each address the functions it is in, the innermost first."""
    command = ["llvm-symbolizer", f"--obj={library}", "--inlines", "--functions=linkage", "--demangle"]
    printed = output_of(*command, text="\n".join(hex(address) for address in addresses))
    return [block.splitlines()[::2] for block in printed.split("\n\n")]  # a name, then its place


def measure(compiler: str) -> dict[str, Measured]:
    """All hot loops of the kernel files, by name."""
    enums = enumerators(ROOT.glob("csrc/**/*.h"))
    measured: dict[str, Measured] = {}
    BUILD.mkdir(parents=True, exist_ok=True)
    for kernels, architecture in KERNELS.items():
        library = BUILD / f"{kernels}_loops.so"
        source = f"csrc/kernels/neon/{kernels}.cpp"
        output_of(compiler, *FLAGS, f"-march={architecture}", source, "-o", str(library))
        text = output_of(
            "llvm-objdump", "-d", "-C", "--no-show-raw-insn", f"--mattr={FEATURES}", str(library)
        )
        found_loops = [
            (f.name, loop) for f in parse_disassembly(text) for loop in inner_loops(f.instructions)
        ]
        found_loops = [(function, loop) for function, loop in found_loops if is_hot(loop)]
        products = INTEGER_PRODUCTS + FLOAT_PRODUCTS
        firsts = [next(i.address for i in loop if i.mnemonic in products) for _, loop in found_loops]
        for (function, loop), frames in zip(found_loops, frames_at(library, firsts), strict=True):
            checked = loop if count(loop, INTEGER_PRODUCTS) else []
            stack, moves = sum(i.touches_stack for i in checked), sum(i.moves_vector for i in checked)
            found = Measured(predict_cycles(loop), stack, moves)
            name = f"{kernels} {name_of(frames, function, enums)}"
            measured[name] = found.worst(measured.get(name, found))
    return measured


def compare(measured: dict[str, Measured], ceilings: dict[str, Measured]) -> list[str]:
    """What got worse, in sentences; nothing if all is well."""
    worse = []
    for name, now in sorted(measured.items()):
        before = ceilings.get(name)
        if before is None:
            worse.append(f"{name}: not recorded ({now.cycles} cycles); --record does it")
            continue
        if now.cycles > before.cycles + SLACK_CYCLES:
            worse.append(f"{name}: {now.cycles} cycles, recorded {before.cycles}")
        if now.stack > before.stack:
            worse.append(f"{name}: {now.stack} accesses of the stack, recorded {before.stack}")
        if now.moves > before.moves:
            worse.append(f"{name}: {now.moves} vector moves, recorded {before.moves}")
    for name in sorted(ceilings.keys() - measured.keys()):
        worse.append(f"{name}: recorded, but there is no such loop; --record forgets it")
    return worse


def find_compiler() -> str | None:
    """A GCC for aarch64: cross, or the machine's own if it is one."""
    for compiler in COMPILERS:
        if shutil.which(compiler) and output_of(compiler, "-dumpmachine").startswith("aarch64"):
            return compiler
    return None


def versions(compiler: str) -> dict[str, str]:
    """What predictions depend on besides the source."""
    llvm = re.search(r"LLVM version (\d+)", output_of("llvm-mca", "--version"))
    return {"gcc": output_of(compiler, "-dumpversion").split(".")[0], "llvm": llvm[1] if llvm else "unknown"}


def record(measured: dict[str, Measured], here: dict[str, str]) -> None:
    """Makes what was measured the ceilings, a line for each loop."""
    loops = (f"  {json.dumps(name)}: {json.dumps(asdict(found))}" for name, found in sorted(measured.items()))
    text = ",\n".join(loops)
    text = f'{{\n "cpu": "{CPU}",\n "versions": {json.dumps(here)},\n "loops": {{\n{text}\n }}\n}}\n'
    RECORD.write_text(text, encoding="utf-8")


def main() -> int:
    """Compares, or records with --record."""
    parser = argparse.ArgumentParser(description="Predicted cycles of the ARM kernels' inner loops.")
    parser.add_argument("--record", action="store_true", help="write what is found as the new ceilings")
    arguments = parser.parse_args()
    compiler = find_compiler()
    missing = [tool for tool in LLVM if not shutil.which(tool)]
    if compiler is None or missing:
        needed = ", ".join(missing if compiler else [COMPILERS[0], *missing])
        print(f"loops skipped: {needed} needed (Debian: llvm, g++-aarch64-linux-gnu)")
        return 0
    here = versions(compiler)
    if arguments.record:
        measured = measure(compiler)
        record(measured, here)
        print(f"recorded {len(measured)} loops in {RECORD.relative_to(ROOT)}")
        return 0
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    if recorded["versions"] != here:
        print(f"loops skipped: their ceilings are for {recorded['versions']}, here is {here}")
        return 0
    measured = measure(compiler)
    worse = compare(measured, {name: Measured(**loop) for name, loop in recorded["loops"].items()})
    for line in worse:
        print(f"FAILED  {line}", file=sys.stderr)
    print(f"loops: {len(measured)} checked, {len(worse)} complaints")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
