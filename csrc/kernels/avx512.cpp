#define STRETTO_ISA avx512
#include "kernels/vec_avx512.h"
#include "half.h"
#include "kernels/direct.h"
#include "kernels/impl.h"

namespace stretto {
const Kernels kAvx512 = avx512::table("avx512", kDirectAvx512);
}
