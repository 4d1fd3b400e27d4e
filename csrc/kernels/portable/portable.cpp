#define STRETTO_ISA portable
#define STRETTO_NO_UNROLL  // lanes are loops here already; unrolling more only costs build time
#include "kernels/portable/vec_portable.h"
#include "weights/half.h"
#include "kernels/direct.h"
#include "kernels/impl.h"

namespace stretto {
const Kernels kPortable = portable::table("portable", kDirectPortable);
}
