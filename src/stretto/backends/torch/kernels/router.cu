// Rows times a matrix of float32 that is small, as a router of experts is: a warp for each row of the matrix.
//
// Constants: X (type of x: 0 float32, 1 bfloat16), K columns (a multiple of 4), N rows of the matrix, ROWS of x of a
// block, BIAS.
constexpr int WARPS = 4;

extern "C" __global__ void __launch_bounds__(32 * WARPS) router(
    const void* x, int rows, const float* w, const float* bias, float* out) {
  const int lane = threadIdx.x % 32, n = blockIdx.x % ((N + WARPS - 1) / WARPS) * WARPS + threadIdx.x / 32;
  const int first = blockIdx.x / ((N + WARPS - 1) / WARPS) * ROWS;
  const float4* its = (const float4*)(w + (long)(n < N ? n : N - 1) * K);
  float4 sums[ROWS] = {};
  launch_next();
  await_inputs();
#pragma unroll 4
  for (int k = lane; k < K / 4; k += 32) {
    const float4 v = its[k];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const long at = (long)(first + r < rows ? first + r : rows - 1) * (K / 4) + k;
      float4 u;
      if (X == 0) {
        u = ((const float4*)x)[at];
      } else {
        const uint2 pairs = ((const uint2*)x)[at];
        u = {__uint_as_float(pairs.x << 16), __uint_as_float(pairs.x & 0xffff0000u), __uint_as_float(pairs.y << 16),
             __uint_as_float(pairs.y & 0xffff0000u)};
      }
      sums[r].x = fmaf(u.x, v.x, sums[r].x), sums[r].y = fmaf(u.y, v.y, sums[r].y);
      sums[r].z = fmaf(u.z, v.z, sums[r].z), sums[r].w = fmaf(u.w, v.w, sums[r].w);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    float y = (sums[r].x + sums[r].y) + (sums[r].z + sums[r].w);
#pragma unroll
    for (int o = 16; o; o >>= 1) y += __shfl_xor_sync(~0u, y, o);
    if (BIAS) y += bias[n < N ? n : N - 1];
    if (lane == 0 && n < N && first + r < rows) out[(long)(first + r) * N + n] = y;
  }
}
