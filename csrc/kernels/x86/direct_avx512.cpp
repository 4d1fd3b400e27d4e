// Products with the file's rows, for the kernel set "avx512".

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
#define STRETTO_HAS_VNNI

namespace stretto {
namespace direct_avx512 {

namespace {

constexpr float kFloatBias = 12582912.0f;  // see impl_matmul.h

#include "kernels/x86/direct_x86.h"
#include "kernels/direct_impl.h"

}  // namespace

}  // namespace direct_avx512

const DirectKernels kDirectAvx512 = {direct_avx512::multiply, direct_avx512::stage};

}  // namespace stretto
