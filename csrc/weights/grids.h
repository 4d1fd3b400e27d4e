// The code books of the IQ formats: an entry is eight numbers, or four, that stand together in a row.
#pragma once

#include <cstdint>

namespace stretto {

struct Grids {
    uint64_t iq2_xxs[256], iq2_xs[512], iq2_s[1024];   // eight bytes: 8, 25 or 43
    uint32_t iq3_xxs[256], iq3_s[512];                 // four bytes
    uint64_t iq1[2048];                                // eight signed bytes: −8, 0 or 8, in eighths
    uint8_t signs[128];                                // seven signs, and an eighth that makes their number even
};

// Made when it is first asked for.
const Grids& grids();

}  // namespace stretto
