"""The speed of a model on this machine, measured through public calls; one file a benchmark.

from stretto import bench

plan = bench.Plan(tokens=64, rounds=3)
llm = stretto.load("smollm2", cells=plan.cells)
for row in bench.speed(llm, plan):
    print(row.test, row.median)
bench.loops(llm, tokens=64, rounds=3)          # Python's part of a step
"""

from stretto.bench.limits import Cost, Machine, file_cost, measure_machine
from stretto.bench.loops import Loop, loops
from stretto.bench.speed import Plan, Row, set_limits, speed

__all__ = [
    "Cost",
    "Loop",
    "Machine",
    "Plan",
    "Row",
    "file_cost",
    "loops",
    "measure_machine",
    "set_limits",
    "speed",
]
