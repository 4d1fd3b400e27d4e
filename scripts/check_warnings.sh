#!/usr/bin/env bash
# Compiles the native core with every compiler that is there, warnings being errors, and runs its own check.
#
#     scripts/check_warnings.sh [compiler …]      of g++, g++-13, clang++-14, clang++-16 … those that are there
#
# Each compiler makes a module as well (with nanobind from .venv), and a program that compares the kernel sets of
# this machine with the portable one.
set -euo pipefail
cd "$(dirname "$0")/.."
