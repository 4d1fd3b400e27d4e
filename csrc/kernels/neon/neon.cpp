#define STRETTO_ISA neon
#include "kernels/neon/vec_neon.h"
#include "weights/half.h"
#include "kernels/direct.h"
#include "kernels/impl.h"

namespace stretto {
const Kernels kNeon = neon::table("neon", kDirectNeon);
}
