// Adds the probe's functions to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace stretto {

void bind_probe(nanobind::module_& m);

}  // namespace stretto
