// Products with the file's rows, for the kernel set "avx2".

#include "kernels/direct.h"

#include <immintrin.h>

#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "weights/formats.h"
#include "weights/grids.h"
#include "weights/half.h"

#define ALWAYS __attribute__((always_inline)) inline
#define ALWAYS_LAMBDA __attribute__((always_inline))

namespace stretto {
namespace direct_avx2 {

namespace {

constexpr float kFloatBias = 12582912.0f;  // see impl_matmul.h

#include "kernels/x86/direct_x86.h"
#include "kernels/direct_impl.h"

}  // namespace

}  // namespace direct_avx2

const DirectKernels kDirectAvx2 = {direct_avx2::multiply, direct_avx2::stage};

}  // namespace stretto
