// CUDA C++ programs whose PTX, as nvcc writes it, is run in the emulator's tests.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>
#include <mma.h>
namespace cg = cooperative_groups;

extern "C" __global__ void block_reduce(const float* x, float* y) {
  constexpr uint64_t n = 1000;
  __shared__ float partial[32];
  float sum = 0;
  for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
  }
}

extern "C" __global__ void scan(const int* x, int* y) {
  __shared__ int buffer[2][256];
  int t = threadIdx.x, from = 0;
  buffer[0][t] = x[t];
  for (int d = 1; d < 256; d *= 2) {
    __syncthreads();
    buffer[1 - from][t] = buffer[from][t] + (t >= d ? buffer[from][t - d] : 0);
    from = 1 - from;
  }
  __syncthreads();
  y[t] = buffer[from][t];
}

extern "C" __global__ void transpose(const float* x, float* y) {
  constexpr uint64_t rows = 37, columns = 50;
  __shared__ float tile[16][17];
  uint64_t column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = x[row * columns + column];
  __syncthreads();
  column = blockIdx.y * 16 + threadIdx.x, row = blockIdx.x * 16 + threadIdx.y;
  if (row < columns && column < rows) y[row * rows + column] = tile[threadIdx.x][threadIdx.y];
}

extern "C" __global__ void matmul(const float* a, const float* b, float* c) {
  constexpr uint64_t n = 48;
  __shared__ float left[16][16], right[16][16];
  uint64_t row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (uint64_t k = 0; k < n; k += 16) {
    left[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

extern "C" __global__ void histogram(const unsigned char* x, int* bins) {
  constexpr uint64_t n = 5000;
  __shared__ int local[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    atomicAdd(&local[x[i]], 1);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local[i]);
}

extern "C" __global__ void warp_sort(const int* x, int* y) {
  int value = x[threadIdx.x], lane = threadIdx.x % 32;
  for (int k = 2; k <= 32; k *= 2) {
    for (int j = k / 2; j > 0; j /= 2) {
      int other = __shfl_xor_sync(0xffffffff, value, j);
      bool up = (lane & k) == 0, low = (lane & j) == 0;
      value = (up == low) ? min(value, other) : max(value, other);
    }
  }
  y[threadIdx.x] = value;
}

extern "C" __global__ void halves(const __half* x, const __half* y, __half* sum, __half* product) {
  int i = threadIdx.x;
  const __half2* a = reinterpret_cast<const __half2*>(x);
  const __half2* b = reinterpret_cast<const __half2*>(y);
  reinterpret_cast<__half2*>(sum)[i] = __hadd2(a[i], b[i]);
  reinterpret_cast<__half2*>(product)[i] = __hfma2(a[i], b[i], a[i]);
}

extern "C" __global__ void bfloats(const __nv_bfloat16* x, const __nv_bfloat16* y, __nv_bfloat16* z) {
  int i = threadIdx.x;
  float a = __bfloat162float(x[i]), b = __bfloat162float(y[i]);
  z[i] = __float2bfloat16(a * b + 1.0f);
}

extern "C" __global__ void divisions(const int* a, const int* b, int* quotient, int* remainder) {
  int i = threadIdx.x;
  quotient[i] = a[i] / b[i] + a[i] / 7;
  remainder[i] = a[i] % b[i] + a[i] % 7;
}

extern "C" __global__ void wide(const long long* a, const long long* b, long long* out) {
  int i = threadIdx.x;
  unsigned long long high = __umul64hi(a[i], b[i]);
  out[i] = (a[i] / b[i]) ^ (a[i] % b[i]) ^ (long long)high ^ (a[i] << (b[i] & 63)) ^ (a[i] >> (b[i] & 31)) ^
           __popcll(a[i]) ^ __clzll(b[i]);
}

extern "C" __global__ void functions(const float* x, float* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  float v = x[i];
  out[i] = sinf(v);
  out[n + i] = cosf(v);
  out[2 * n + i] = expf(v);
  out[3 * n + i] = logf(fabsf(v));
  out[4 * n + i] = powf(fabsf(v), 1.7f);
  out[5 * n + i] = erff(v);
  out[6 * n + i] = tanhf(v);
  out[7 * n + i] = v / 3.0f;
}

extern "C" __global__ void doubles(const double* x, double* out) {
  int i = threadIdx.x, n = blockDim.x;
  out[i] = sin(x[i]);
  out[n + i] = exp(x[i]);
  out[2 * n + i] = log(fabs(x[i]));
  out[3 * n + i] = x[i] / 3.7 + sqrt(fabs(x[i]));
}

__device__ __noinline__ int collatz(int n, int* trail) {
  int steps = 0;
  while (n != 1 && steps < 400) {
    trail[steps % 8] = n;
    n = n % 2 ? 3 * n + 1 : n / 2;
    ++steps;
  }
  return steps;
}

extern "C" __global__ void local_arrays(int* y) {
  int trail[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  int steps = collatz(threadIdx.x + 1, trail);
  int sum = steps;
  for (int i = 0; i < 8; ++i) sum += trail[(i + threadIdx.x) % 8];
  y[threadIdx.x] = sum;
}

// One warp multiplies 32 x 32 matrices with the tensor cores, tile by tile.
template <class T, int depth, class Load>
__device__ void tensor_matmul(const Load* a, const Load* b, float* c) {
  using namespace nvcuda::wmma;
  constexpr int n = 32;
  for (int row = 0; row < n; row += 16) {
    for (int column = 0; column < n; column += 16) {
      fragment<accumulator, 16, 16, depth, float> sum;
      fill_fragment(sum, 0.5f);
      for (int k = 0; k < n; k += depth) {
        fragment<matrix_a, 16, 16, depth, T, row_major> left;
        fragment<matrix_b, 16, 16, depth, T, col_major> right;
        load_matrix_sync(left, a + row * n + k, n);
        load_matrix_sync(right, b + column * n + k, n);
        mma_sync(sum, left, right, sum);
      }
      for (int e = 0; e < sum.num_elements; ++e) sum.x[e] *= 2;
      store_matrix_sync(c + row * n + column, sum, n, mem_row_major);
    }
  }
}

extern "C" __global__ void matmul_f16(const __half* a, const __half* b, float* c) {
  tensor_matmul<__half, 16>(a, b, c);
}

extern "C" __global__ void matmul_bf16(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c) {
  tensor_matmul<__nv_bfloat16, 16>(a, b, c);
}

extern "C" __global__ void matmul_tf32(const float* a, const float* b, float* c) {
  tensor_matmul<nvcuda::wmma::precision::tf32, 8>(a, b, c);
}

// The same product with mma.sync and ldmatrix, as libraries of kernels write it, from shared memory
// that cp.async fills.
extern "C" __global__ void matmul_mma(const __half* a, const __half* b, float* c) {
  constexpr int n = 32;
  __shared__ __align__(16) __half left[n * n], right[n * n];
  int lane = threadIdx.x;
  for (int i = lane * 8; i < n * n; i += 32 * 8) {
    unsigned to_left = __cvta_generic_to_shared(left + i), to_right = __cvta_generic_to_shared(right + i);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_left), "l"(a + i));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_right), "l"(b + i));
  }
  asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;");
  __syncthreads();
  for (int row = 0; row < n; row += 16) {
    for (int column = 0; column < n; column += 8) {
      float sum[4] = {};
      for (int k = 0; k < n; k += 16) {
        unsigned x[4], y[2];
        unsigned from = __cvta_generic_to_shared(left + (row + lane % 16) * n + k + lane / 16 * 8);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(from));
        from = __cvta_generic_to_shared(right + (k + lane % 16) * n + column);
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(y[0]), "=r"(y[1])
                     : "r"(from));
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
      }
      float* out = c + (row + lane / 4) * n + column + lane % 4 * 2;
      out[0] = sum[0], out[1] = sum[1], out[8 * n] = sum[2], out[8 * n + 1] = sum[3];
    }
  }
}

// Sums of each row by warps that walk down a grid, with a functor through a template and early exits.
template <class Combine>
__device__ float warp_reduce(float value, Combine combine) {
  for (int offset = 16; offset > 0; offset /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffff, value, offset));
  return value;
}

extern "C" __global__ void softmax(const float* x, float* y) {
  constexpr int rows = 11, n = 70;
  for (int row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += gridDim.x * blockDim.y) {
    float most = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < n; i += 32) most = fmaxf(most, x[row * n + i]);
    most = warp_reduce(most, [](float a, float b) { return fmaxf(a, b); });
    for (int i = threadIdx.x; i < n; i += 32) sum += __expf(x[row * n + i] - most);
    sum = warp_reduce(sum, [](float a, float b) { return a + b; });
    for (int i = threadIdx.x; i < n; i += 32) y[row * n + i] = __expf(x[row * n + i] - most) / sum;
  }
}

// Unsigned division and modulo, shifts, bit counts, and a switch.
extern "C" __global__ void bit_tricks(const unsigned* a, const unsigned* b, unsigned* out) {
  int i = threadIdx.x;
  unsigned x = a[i], y = b[i], r;
  switch (i % 7) {
    case 0: r = x / y; break;
    case 1: r = x % y; break;
    case 2: r = __brev(x) ^ __popc(y); break;
    case 3: r = __funnelshift_l(x, y, y & 31); break;
    case 4: r = __byte_perm(x, y, 0x3174); break;
    case 5: r = x / 10 * 7 + x % 1000; break;
    default: r = __ffs(x) * 1000 + __clz(y);
  }
  out[i] = r;
}

// Division and modulo of 128 bits.
extern "C" __global__ void very_wide(const unsigned long long* a, const long long* b, const long long* c,
                                     long long* quotients, unsigned long long* remainders) {
  int i = threadIdx.x;
  __int128 n = (__int128)(((unsigned __int128)a[i] << 64) | (unsigned long long)b[i]);
  __int128 quotient = n / c[i];
  quotients[i] = (long long)quotient ^ (long long)(quotient >> 64);
  remainders[i] = (unsigned long long)((unsigned __int128)n % 1000003);
}

// A linked list and a constant table, in module variables.
__constant__ float weights[5] = {0.5f, -1.0f, 2.0f, 0.25f, 3.0f};
__device__ int visits = 100;

extern "C" __global__ void polynomial(const double* x, double* y, int* count) {
  int i = threadIdx.x;
  double value = 0;
  for (int k = 4; k >= 0; --k) value = value * x[i] + weights[k];
  y[i] = value;
  if (value > 0) atomicAdd(&visits, 1);
  __syncthreads();
  if (i == 0) *count = visits;
}

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_reduce(const float* x, float* y) {
  __shared__ float sum;
  cg::cluster_group cluster = cg::this_cluster();
  float value = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
  if (threadIdx.x == 0) sum = value;
  cluster.sync();
  float total = 0;
  for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank) total += *cluster.map_shared_rank(&sum, rank);
  cluster.sync();
  if (threadIdx.x == 0) y[blockIdx.x] = total;
}
#endif
