"""scripts/check_arm_loops.py: finding loops in a disassembly, naming them, and telling which got worse."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

_PATH = Path(__file__).parent.parent / "scripts" / "check_arm_loops.py"
_SPEC = importlib.util.spec_from_file_location("check_arm_loops", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
loops = importlib.util.module_from_spec(_SPEC)
sys.modules["check_arm_loops"] = loops  # where its dataclasses look for their types
_SPEC.loader.exec_module(loops)
Measured = loops.Measured

# An outer loop (0x104 … 0x13c) around one with products (0x10c … 0x134) that has a way around its middle.
DISASSEMBLY = """
kernels.so:     file format elf64-littleaarch64

Disassembly of section .text:

0000000000000100 <void stretto::neon::(anonymous namespace)::Tiles<(stretto::Layout)1>::tile<4, 4ul>(int, float)>:
     100:       mov     x3, #0
     104:       ldr     q0, [x1], #16
     108:       movi    v1.2d, #0000000000000000
     10c:       ldr     q2, [sp, #32]
     110:       cbz     x4, 0x11c <void stretto::neon::(anonymous namespace)::Tiles<(stretto::Layout)1>::tile<4, 4ul>(int, float)+0x1c>
     114:       mov     v3.16b, v2.16b
     118:       mov     v3.s[1], v2.s[0]
     11c:       sdot    v1.4s, v0.16b, v2.4b[0]
     120:       sdot    v1.4s, v0.16b, v2.4b[1]   // =4
     124:       sdot    v4.4s, v0.16b, v2.4b[0]
     128:       sdot    v5.4s, v0.16b, v2.4b[1]
     12c:       sdot    v6.4s, v0.16b, v2.4b[0]
     130:       subs    x2, x2, #1
     134:       b.ne    0x10c <void stretto::neon::(anonymous namespace)::Tiles<(stretto::Layout)1>::tile<4, 4ul>(int, float)+0xc>
     138:       add     x3, x3, #1
     13c:       b       0x104 <void stretto::neon::(anonymous namespace)::Tiles<(stretto::Layout)1>::tile<4, 4ul>(int, float)+0x4>

0000000000000140 <other()>:
     140:       b       0x100 <void stretto::neon::(anonymous namespace)::Tiles<(stretto::Layout)1>::tile<4, 4ul>(int, float)>
     144:       bl      0x140 <other()>
"""  # noqa: E501
ENUMS = {"Layout": ["kNibbles", "kNibblesMin"], "Source": ["kFloats", "kHalf"]}


def inner_loop():
    functions = loops.parse_disassembly(DISASSEMBLY)
    assert [len(f.instructions) for f in functions] == [16, 2]
    found = [loop for f in functions for loop in loops.inner_loops(f.instructions)]
    assert len(found) == 1  # neither the outer one, nor a jump to another function, nor a call
    return found[0]


def test_the_inner_loop_is_found():
    loop = inner_loop()
    assert (loop[0].address, loop[-1].address) == (0x10C, 0x134)
    assert loops.count(loop, loops.INTEGER_PRODUCTS) == 5
    assert not loops.is_hot(loop)
    assert loops.is_hot(loop * 2)


def test_spills_and_moves_are_counted():
    loop = inner_loop()
    assert [i.address for i in loop if i.touches_stack] == [0x10C]
    assert [i.address for i in loop if i.moves_vector] == [0x114]  # a lane is no vector


def test_branches_lead_to_the_start():
    lines = loops.assembly_of(inner_loop()).splitlines()
    assert lines[0] == "start:"
    assert "cbz x4, start" in lines
    assert lines[-1] == "b.ne start"
    assert not any("<" in line or "0x" in line for line in lines)


def test_names_come_from_the_inline_chain():
    whole = loops.parse_disassembly(DISASSEMBLY)[0].name
    chain = ["vdotq_laneq_s32(int)", "operator()<std::integral_constant<int, 0> >", "dot<0>", "tile<4, 4>"]
    assert loops.name_of(chain, whole, ENUMS) == "kNibblesMin tile<4, 4>"
    assert loops.name_of([whole], whole, ENUMS) == "kNibblesMin tile<4, 4>"
    chain = ["mix_eight<3>", "score_chunk<3, 4, (stretto::neon::<unnamed>::Source)1>"]
    assert loops.name_of(chain, "attend()", ENUMS) == "score_chunk<3, 4, kHalf>"


def test_enumerators_are_read_from_headers(tmp_path):
    header = tmp_path / "a.h"
    header.write_text(
        "enum class Layout {\n    kA,  // one, two\n    kB = 4,\n};\nenum class Kind { kC, kD };\n"
    )
    assert loops.enumerators([header]) == {"Layout": ["kA", "kB"], "Kind": ["kC", "kD"]}


def test_what_got_worse_is_told():
    ceilings = {"a": Measured(50.0), "b": Measured(20.0, 2, 1), "gone": Measured(9.0)}
    assert (
        loops.compare({"a": Measured(53.0), "b": Measured(10.0, 2, 1), "gone": Measured(1.0)}, ceilings) == []
    )
    worse = loops.compare(
        {"a": Measured(53.1, 1, 1), "b": Measured(20.0, 2, 2), "new": Measured(1.0)}, ceilings
    )
    assert worse == [
        "a: 53.1 cycles, recorded 50.0",
        "a: 1 accesses of the stack, recorded 0",
        "a: 1 vector moves, recorded 0",
        "b: 2 vector moves, recorded 1",
        "new: not recorded (1.0 cycles); --record does it",
        "gone: recorded, but there is no such loop; --record forgets it",
    ]


@pytest.mark.skipif(not shutil.which("llvm-mca"), reason="no llvm-mca here")
def test_a_prediction():
    loop = inner_loop()
    assert 4 < loops.predict_cycles(loop) < loops.predict_cycles(loop * 2) < 100
    unknown = loops.Instruction(0, "<unknown>", "")
    with pytest.raises(SystemExit, match="could not read"):
        loops.predict_cycles([unknown, *loop])
