// Rows rounded to 8 bits, as octets.cuh says, into places for at least as many: a warp for each 256 columns of a row.
//
// Constants beside those of octets.cuh: X, the type of x as OUT.
constexpr int SPANS = (BLOCKS32 + 7) / 8;

extern "C" __global__ void __launch_bounds__(128) octets(const void* x, Octets to, int rows, int places) {
  const int item = blockIdx.x * 4 + threadIdx.x / 32, row = item / SPANS, span = item % SPANS;
  launch_next();
  await_inputs();
  if (row < rows) round_span(x, X, (long)row * K, span, threadIdx.x % 32, to, row, places);
}
