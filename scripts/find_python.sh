#!/bin/sh
# Prints a Python that can build Stretto, or says in a sentence what is missing and which package has it. Fetches nothing.
#
#     PYTHON=… scripts/find_python.sh      only this one is looked at; else python3 and the versions that are installed
set -u

say() {
    echo "Stretto cannot be built here: $1" >&2
    exit 1
}

# package SENTENCE DEBIAN FEDORA MACOS
package() {
    say "$1; install it with 'sudo apt install $2' (Debian, Ubuntu), 'sudo dnf install $3' (Fedora) or '$4' (macOS)"
}

new_enough='import sys; sys.exit(sys.version_info < (3, 10))'
found=
for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10 python}; do
    if "$name" -c "$new_enough" 2>/dev/null; then found=$name && break; fi
done
if [ -z "$found" ]; then
    version=$("${PYTHON:-python3}" --version 2>/dev/null) || version="not installed"
    package "it needs Python 3.10 or newer, and ${PYTHON:-python3} is $version (PYTHON=… names another one)" \
            "python3 python3-venv python3-dev" "python3 python3-devel" "brew install python"
fi

compiler=${CXX:-}
for name in c++ g++ clang++; do
    if [ -z "$compiler" ] && command -v "$name" >/dev/null; then compiler=$name; fi
done
# shellcheck disable=SC2086  # CXX may hold options
if [ -z "$compiler" ] || ! echo '#include <string>' | $compiler -std=c++17 -fsyntax-only -x c++ - 2>/dev/null; then
    package "there is no C++17 compiler${compiler:+ ($compiler does not work)}" g++ gcc-c++ "xcode-select --install"
fi

lacks=$("$found" - <<'PROGRAM'
import importlib.util
import os
import sys
import sysconfig

version = "python%d.%d" % sys.version_info[:2]
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print("%s has no headers (Python.h):%s-dev" % (version, version))
elif importlib.util.find_spec("ensurepip") is None:
    print("%s cannot make environments (ensurepip):%s-venv" % (version, version))
PROGRAM
) || say "$found does not run"
if [ -n "$lacks" ]; then
    package "${lacks%%:*}" "${lacks#*:}" "python3-devel" "brew install python"
fi
echo "$found"
