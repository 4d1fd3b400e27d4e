"""Interrupts the code of Stretto everywhere, as Ctrl-C does.

Long operations are interrupted at every n-th place, from another one in each run. Repeat a failure with the
seed that it printed, STRETTO_INTERRUPT_SEED=…; STRETTO_INTERRUPT_STEP=1 interrupts everywhere, for minutes.
"""

import dis
import os
import sys
import time
from functools import cache
from itertools import count

# The interpreter looks for interrupts behind calls, at the beginning of functions and where loops turn.
LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD", "POP_JUMP_BACKWARD", "JUMP_ABSOLUTE")
STRETTO = ("stretto/cache/", "stretto/engine/", "stretto/backends/batch.py")


@cache
def places(code):
    """Offsets of byte codes before which an interrupt can come."""
    found, before = set(), "RESUME"
    for instruction in dis.get_instructions(code):
        if before.startswith(LOOKS):
            found.add(instruction.offset)
        before = instruction.opname
    return found


class Interrupt:
    """Raises KeyboardInterrupt at the n-th place where one could come, in Stretto's own code."""

    def __init__(self, n, files=STRETTO):
        self.left, self.files = n, files

    def __enter__(self):
        sys.settrace(self.trace)

    def __exit__(self, *error):
        sys.settrace(None)

    def trace(self, frame, event, argument):
        if not any(part in frame.f_code.co_filename.replace("\\", "/") for part in self.files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and frame.f_lasti in places(frame.f_code):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.trace


def interrupted_everywhere(make, act, check, step=1):
    """Run `act(make())` with an interrupt at each `step`-th place, and `check` what is left; how many."""
    seed = int(os.environ.get("STRETTO_INTERRUPT_SEED") or time.time_ns() % 1_000_000)
    step = int(os.environ.get("STRETTO_INTERRUPT_STEP") or step)
    print(f"STRETTO_INTERRUPT_SEED={seed}")  # shown if it fails
    with Interrupt(sys.maxsize):  # Python 3.12 traces no byte codes the first time
        act(make())
    for n in count(1 + seed % step, step):
        made, interrupt = make(), Interrupt(n)
        try:
            with interrupt:
                act(made)
        except KeyboardInterrupt:
            pass
        check(made)
        if interrupt.left > 0:
            return n
    raise AssertionError
