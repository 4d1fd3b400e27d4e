// Products with the file's rows, for the kernel set "portable".

#include "kernels/direct.h"

#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "weights/formats.h"
#include "weights/grids.h"
#include "weights/half.h"

#define STRETTO_NO_UNROLL
#define ALWAYS inline
#define ALWAYS_LAMBDA

namespace stretto {
namespace direct_portable {

namespace {

#include "kernels/portable/direct_portable.h"
#include "kernels/direct_impl.h"

}  // namespace

}  // namespace direct_portable

const DirectKernels kDirectPortable = {direct_portable::multiply, direct_portable::stage};

}  // namespace stretto
