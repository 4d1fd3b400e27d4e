#define STRETTO_ISA avx2
#include "kernels/vec_avx2.h"
#include "half.h"
#include "kernels/direct.h"
#include "kernels/impl.h"

namespace stretto {
const Kernels kAvx2 = avx2::table("avx2", kDirectAvx2);
}
