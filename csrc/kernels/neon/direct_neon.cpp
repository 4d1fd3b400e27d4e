// Products with the file's rows, for the kernel set "neon".

#include "kernels/direct.h"

#include <arm_neon.h>

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
namespace direct_neon {

namespace {

constexpr float kFloatBias = 12582912.0f;  // see impl_matmul.h

#include "kernels/neon/direct_neon.h"
#include "kernels/direct_impl.h"

}  // namespace

}  // namespace direct_neon

const DirectKernels kDirectNeon = {direct_neon::multiply, direct_neon::stage};

}  // namespace stretto
