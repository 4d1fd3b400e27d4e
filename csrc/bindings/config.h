#pragma once

#include "bindings/bindings.h"
#include "model/config.h"

namespace stretto {

Config config_of(const nb::dict& spec);

}  // namespace stretto
