#define STRETTO_ISA avx512
#include "kernels/x86/vec_avx512.h"
#include "weights/half.h"
#include "kernels/direct.h"
#include "kernels/impl.h"

namespace stretto {
const Kernels kAvx512 = avx512::table("avx512", kDirectAvx512);
}
