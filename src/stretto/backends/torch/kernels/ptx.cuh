// The instructions that have no name in C++, for gemv.cu and few.cu: no headers are needed to compile it.
typedef unsigned int u32;

// Weights are read once: they bypass L1. Loads are predicated, not branched around: behind a branch the compiler
// moves them below the work that they are to overlap with.
__device__ __forceinline__ uint4 stream4(const void* p, bool wanted) {
  uint4 v;
  asm volatile(
      "{ .reg .pred q; setp.ne.u32 q, %5, 0;\n"
      "@q ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p), "r"((u32)wanted));
  return v;
}
__device__ __forceinline__ uint2 stream2(const void* p, bool wanted) {
  uint2 v;
  asm volatile(
      "{ .reg .pred q; setp.ne.u32 q, %3, 0;\n"
      "@q ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2]; }"
      : "=r"(v.x), "=r"(v.y)
      : "l"(p), "r"((u32)wanted));
  return v;
}
__device__ __forceinline__ u32 stream1(const void* p, bool wanted) {
  u32 v;
  asm volatile(
      "{ .reg .pred q; setp.ne.u32 q, %2, 0;\n"
      "@q ld.global.nc.L1::no_allocate.L2::128B.u32 %0, [%1]; }"
      : "=r"(v)
      : "l"(p), "r"((u32)wanted));
  return v;
}
// What stands behind it stays behind it: loads are not moved down into the work that they overlap with.
__device__ __forceinline__ void keep_order() { __syncwarp(); }

// Four numbers without a sign times four with one, added to c.
__device__ __forceinline__ int dot4(u32 a, u32 b, int c) {
  int d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ u32 permute(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
// The same, where a selector with its fourth bit set selects the byte's sign.
__device__ __forceinline__ u32 permute_signed(u32 a, u32 b, u32 selector) {
  u32 v;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(selector));
  return v;
}

__device__ __forceinline__ float of_half(u32 bits) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((unsigned short)bits));
  return f;
}
__device__ __forceinline__ unsigned short to_half(float f) {
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
__device__ __forceinline__ unsigned short to_bfloat(float f) {
  unsigned short h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}

// Two numbers in bfloat16; a tile's product of 16 rows by 16 columns with 8 columns of x.
__device__ __forceinline__ void mma(float acc[4], const u32 a[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same of 32 columns of signed 8-bit numbers, in exact sums that begin with `c`.
__device__ __forceinline__ void imma(int to[4], const u32 a[4], u32 b0, u32 b1, int c) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c));
}
// Four matrices of 8 × 8 numbers in bfloat16: a lane gives the address of row lane % 8 of matrix lane / 8, and gets
// numbers 2 × (lane % 4) and the next of row lane / 4 of each.
__device__ __forceinline__ void load_matrices(u32 to[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((u32)__cvta_generic_to_shared(row)));
}
__device__ __forceinline__ float of_bfloat(u32 bits) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ u32 pair(float low, float high) {
  u32 v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
  u32 v;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
  return v;
}

__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float divide(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// The next kernel may be launched; what the kernel before has written can be read behind `await_inputs`.
__device__ __forceinline__ void launch_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void await_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Copies into shared memory that nobody waits for: `commit` ends a group, `await_copies` waits until at most so many
// groups are under way. What is not wanted becomes 0.
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void copy16(void* to, const void* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(wanted ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy8(void* to, const void* from, bool wanted) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from), "r"(wanted ? 8 : 0)
               : "memory");
}
__device__ __forceinline__ void copy4(void* to, const void* from, bool wanted) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(wanted ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Sums of other blocks: what is written before `fence` is seen by those that read it freshly behind theirs.
__device__ __forceinline__ void fence() { __threadfence(); }
__device__ __forceinline__ float read_fresh(const float* p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ float4 read_fresh4(const float* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ uint4 read_fresh16(const void* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
__device__ __forceinline__ void add_release(int* p) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(p) : "memory");
}
__device__ __forceinline__ int load_acquire(const int* p) {
  int v;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
