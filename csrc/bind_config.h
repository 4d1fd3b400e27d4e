#pragma once

#include "bindings.h"
#include "config.h"

namespace stretto {

Config config_of(const nb::dict& spec);

}  // namespace stretto
