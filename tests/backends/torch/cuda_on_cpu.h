// CUDA C++ on a CPU, thread by thread (fibers): what kernels/ptx.cuh has in instructions, for tests of the sources.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
typedef unsigned int u32;
struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
struct int4 { int x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
template <class To, class From> static To bits_of(From v) {
  To to;
  memcpy(&to, &v, sizeof to);
  return to;
}
static float2 make_float2(float a, float b) { return {a, b}; }
static float __uint_as_float(u32 v) { return bits_of<float>(v); }
static float __int_as_float(int v) { return bits_of<float>(v); }
static int __float_as_int(float v) { return bits_of<int>(v); }
static u32 __float_as_uint(float v) { return bits_of<u32>(v); }
static int __float2int_rn(float f) { return (int)rintf(f); }
static float __fdividef(float a, float b) { return a / b; }
#define __expf expf  // a name that the C library has too
static float rsqrtf(float f) { return 1 / sqrtf(f); }

template <class T> static T stream(const void* p, bool wanted) {
  if (wanted && (size_t)p % sizeof(T)) abort();
  return wanted ? *(const T*)p : T{};
}
#define stream4 stream<uint4>
#define stream2 stream<uint2>
#define stream1 stream<u32>
static int dot4(u32 a, u32 b, int c) {
  for (int i = 0; i < 4; i++) c += (int)(uint8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
  return c;
}
static u32 permute(u32 a, u32 b, u32 selector) {
  const uint64_t v = (uint64_t)b << 32 | a;
  u32 to = 0;
  for (int i = 0; i < 4; i++) {
    const u32 n = selector >> 4 * i & 15, octet = v >> 8 * (n & 7) & 255;
    to |= (n & 8 ? (octet & 128 ? 255u : 0u) : octet) << 8 * i;
  }
  return to;
}
#define permute_signed permute
static float of_half(u32 h) {
  const float size = (h >> 10 & 31) ? ldexpf(1024 + (h & 1023), (int)(h >> 10 & 31) - 25) : ldexpf(h & 1023, -24);
  return h >> 15 & 1 ? -size : size;
}
static unsigned short to_half(float) { abort(); }
static unsigned short to_bfloat(float f) {
  const u32 u = __float_as_uint(f);
  return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
static float of_bfloat(u32 v) { return __uint_as_float(v << 16); }
static u32 pair(float low, float high) { return to_bfloat(low) | (u32)to_bfloat(high) << 16; }
static u32 fma2(u32 a, u32 b, u32 c) {
  float v[2];
  for (int i = 0; i < 2; i++)
    v[i] = (double)of_bfloat(a >> 16 * i & 0xffff) * of_bfloat(b >> 16 * i & 0xffff) + of_bfloat(c >> 16 * i & 0xffff);
  return pair(v[0], v[1]);
}
static float exp2_of(float x) { return exp2f(x); }
static float divide(float a, float b) { return a / b; }
static void launch_next() {}
static void await_inputs() {}
static void keep_order() {}

// Fibers, a block at a time
struct Index { unsigned x; };
struct Meeting { int n = 0, epoch = 0; };
static Index threadIdx, blockIdx, gridDim;
static Meeting block_meeting, warp_meetings[32];
static ucontext_t scheduler, fibers[1024];
static int current, n_threads;
static bool ended[1024];
static float exchanged[32][32];
static u32 operands[32][32][6];
static int4 dynamic_shared[1 << 14];

static void meet(Meeting& m, int n) {
  const int epoch = m.epoch;
  if (++m.n == n) m.n = 0, m.epoch++;
  while (m.epoch == epoch) swapcontext(&fibers[current], &scheduler);
}
static void __syncthreads() { meet(block_meeting, n_threads); }
static float __shfl_xor_sync(unsigned, float v, int other) {
  const int w = current / 32, l = current % 32;
  exchanged[w][l] = v;
  meet(warp_meetings[w], 32);
  v = exchanged[w][l ^ other];
  meet(warp_meetings[w], 32);
  return v;
}
static void mma(float acc[4], const u32 a[4], u32 b0, u32 b1) {
  const int w = current / 32, l = current % 32;
  const u32 mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  memcpy(operands[w][l], mine, sizeof mine);
  meet(warp_meetings[w], 32);
  for (int e = 0; e < 4; e++) {
    double sum = acc[e];
    for (int k = 0; k < 16; k++) {
      const u32* row = operands[w][l / 4 * 4 + k % 8 / 2];
      const u32* column = operands[w][(l % 4 * 2 + e % 2) * 4 + k % 8 / 2];
      sum += (double)of_bfloat(row[k / 8 * 2 + e / 2] >> 16 * (k % 2) & 0xffff) *
             of_bfloat(column[4 + k / 8] >> 16 * (k % 2) & 0xffff);
    }
    acc[e] = sum;
  }
  meet(warp_meetings[w], 32);
}
static void imma(int to[4], const u32 a[4], u32 b0, u32 b1, int c) {
  const int w = current / 32, l = current % 32;
  const u32 mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  memcpy(operands[w][l], mine, sizeof mine);
  meet(warp_meetings[w], 32);
  for (int e = 0; e < 4; e++) {
    to[e] = c;
    for (int k = 0; k < 32; k++) {
      const u32 row = operands[w][l / 4 * 4 + k % 16 / 4][k / 16 * 2 + e / 2];
      const u32 column = operands[w][(l % 4 * 2 + e % 2) * 4 + k % 16 / 4][4 + k / 16];
      to[e] += (int)(int8_t)(row >> 8 * (k % 4)) * (int8_t)(column >> 8 * (k % 4));
    }
  }
  meet(warp_meetings[w], 32);
}
static void load_matrices(u32 to[4], const void* row) {
  static const void* rows[32][32];
  const int w = current / 32, l = current % 32;
  rows[w][l] = row;
  meet(warp_meetings[w], 32);
  for (int i = 0; i < 4; i++) to[i] = ((const u32*)rows[w][8 * i + l / 4])[l % 4];
  meet(warp_meetings[w], 32);
}
static void __syncwarp() { meet(warp_meetings[current / 32], 32); }
template <class T> static void copy(void* to, const void* from, bool wanted) {
  if ((size_t)to % sizeof(T) || (wanted && (size_t)from % sizeof(T))) abort();
  *(T*)to = wanted ? *(const T*)from : T{};
}
#define copy16 copy<uint4>
#define copy8 copy<uint2>
#define copy4 copy<u32>
static void commit() {}
template <int LEFT> static void await_copies() {}
static void fence() {}
static float read_fresh(const float* p) { return *p; }
static float4 read_fresh4(const float* p) { return *(const float4*)p; }
static uint4 read_fresh16(const void* p) { return *(const uint4*)p; }
static void prefetch(const void*) {}
static void add_release(int* p) { ++*p; }
static int load_acquire(const int* p) { return *p; }
static int atomicAdd(int* p, int by) { return (*p += by) - by; }
static void run_blocks(int blocks, int threads, void (*body)()) {
  static std::vector<std::vector<char>> stacks(1024, std::vector<char>(64 << 10));
  n_threads = threads, gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < (unsigned)blocks; blockIdx.x++) {
    memset(dynamic_shared, 0x55, sizeof dynamic_shared);
    for (int i = 0; i < threads; i++) {
      ended[i] = false;
      getcontext(&fibers[i]);
      fibers[i].uc_stack.ss_sp = stacks[i].data(), fibers[i].uc_stack.ss_size = stacks[i].size();
      makecontext(&fibers[i], body, 0);
    }
    for (int left = threads; left;)
      for (current = 0; current < threads; current++) {
        if (ended[current]) continue;
        threadIdx.x = current;
        swapcontext(&scheduler, &fibers[current]);
        left -= ended[current];
      }
  }
}
