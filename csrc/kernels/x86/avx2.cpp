#define STRETTO_ISA avx2
#include "kernels/x86/vec_avx2.h"
#include "weights/half.h"
#include "kernels/direct.h"
#include "kernels/impl.h"

namespace stretto {
const Kernels kAvx2 = avx2::table("avx2", kDirectAvx2);
}
