// Adds the probe's functions to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_probe(nb::module_& m);
