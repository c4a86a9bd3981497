/* Attention of bf16 elements: what its kernels have in common.
 *
 * Its matrices are rounded once, into rows of a multiple of COPIED elements. A block of warps has
 * ROWS rows of one head, 16 for each warp, and walks over COLUMNS columns at a time; rows and
 * columns are queries and keys, or keys and queries. The next columns are copied while the block
 * computes with these:
 *
 *   shared memory   rows [ROWS, WIDTH] of one or two matrices
 *                   columns [COLUMNS, WIDTH] of two matrices, twice: those of now, and the next
 *   registers       the warp's scores [16, COLUMNS] and results [16, WIDTH] (warp_products.h)
 *
 * (Dao, "FlashAttention-2", 2023.) Two sizes of blocks serve GPUs with much and with little shared
 * memory. */
#ifndef SLI_DEVICE_CUDA_KERNELS_BF16_ATTENTION_H
#define SLI_DEVICE_CUDA_KERNELS_BF16_ATTENTION_H

#include "device/cuda/kernels/dropout.h"
#include "device/cuda/kernels/reduce.h"
#include "device/cuda/kernels/warp_products.h"

/* The matrices q, k, v of all heads: [samples, positions, heads + 2 key_heads, width]. */
struct rounded_heads {
    const bfloat *qkv;
    int positions, heads, key_heads;
    int head_width, width; /* of the caller's rows; rounded up to a multiple of COPIED */
    bool causal;
};

template <int ROWS_OF_BLOCK, int COLUMNS_OF_STEP> struct block_size {
    enum {
        ROWS = ROWS_OF_BLOCK,
        COLUMNS = COLUMNS_OF_STEP,
        THREADS = ROWS / PRODUCT_ROWS * (int)WARP,
        TILES = COLUMNS / PRODUCT_COLUMNS /* of a warp's scores */
    };
};

/* Bytes for a block with so many matrices of rows. */
template <class Block, int WIDTH> constexpr size_t shared_bytes(int matrices)
{
    return (size_t)(matrices * Block::ROWS + 4 * Block::COLUMNS) * SHARED_LD<WIDTH> *
           sizeof(bfloat);
}

/* Where a block works: a sample's head, and its first row. */
struct block_place {
    int sample, head, first;
};

/* With the causal mask, the longest walks come first, so that the last blocks are short. */
static inline __device__ block_place place_of(const rounded_heads &h, int heads, int rows,
                                              bool last_first)
{
    int tiles = (h.positions + rows - 1) / rows;
    int task = (int)blockIdx.x / tiles, tile = (int)blockIdx.x - task * tiles;
    block_place place = {task / heads, task % heads, (last_first ? tiles - 1 - tile : tile) * rows};
    return place;
}

/* The rows of matrix 0, 1 or 2 (q, k, v) from `position`; `head` is one of that matrix's. */
static inline __device__ matrix_rows rows_of(const rounded_heads &h, int sample, int head,
                                             int matrix, int position)
{
    int64_t ld = (int64_t)(h.heads + 2 * h.key_heads) * h.width;
    int first = matrix == 0 ? 0 : h.heads + (matrix - 1) * h.key_heads;
    matrix_rows rows = {h.qkv + ((int64_t)sample * h.positions + position) * ld +
                            (int64_t)(first + head) * h.width,
                        ld, h.positions - position};
    return rows;
}

/* Which of a lane's sums [16, 8 TILES] dropout keeps: bits 4 i to 4 i + 3 for the product i. A call
 * of Philox gives the masks of four keys that follow each other; the lanes share the calls. Here
 * rows are queries, of which two lanes have two rows and half of four keys each. */
template <int TILES>
static inline __device__ unsigned kept_in_rows(const dropout_masks &m, const block_place &at,
                                               int positions, int query, int key)
{
    static_assert(TILES <= 8, "the bits fit");
    unsigned lane = threadIdx.x % WARP, is_odd = lane % 2, kept = 0;
    int64_t position = (int64_t)at.head * positions + query + lane / 4 + 8 * is_odd;
    uint64_t group = (uint64_t)(position * m.row_groups) + (unsigned)key / 4 + lane % 4 / 2;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        unsigned own = kept_of_group(m, (uint32_t)at.sample, group + 2 * tile);
        unsigned other = __shfl_xor_sync(ALL_LANES, own, 1);
        unsigned both = is_odd ? other >> 2 | (own >> 2) << 2 : (own & 3) | (other & 3) << 2;
        kept |= both << 4 * tile;
    }
    return kept;
}

/* The same where rows are keys: four lanes have one row each of four calls' masks. */
template <int TILES>
static inline __device__ unsigned kept_in_columns(const dropout_masks &m, const block_place &at,
                                                  int positions, int query, int key)
{
    static_assert(TILES <= 8, "the bits fit");
    unsigned lane = threadIdx.x % WARP, call = lane / 4 % 4, kept = 0;
    int64_t position = (int64_t)at.head * positions + query + lane % 4 * 2 + call % 2;
    uint64_t group =
        (uint64_t)(position * m.row_groups) + (unsigned)key / 4 + lane / 16 + call / 2 * 2;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        unsigned all = kept_of_group(m, (uint32_t)at.sample,
                                     group + (uint64_t)(PRODUCT_COLUMNS * tile * m.row_groups))
                       << 4 * call;
        all |= __shfl_xor_sync(ALL_LANES, all, 4);
        all |= __shfl_xor_sync(ALL_LANES, all, 8);
        for (unsigned i = 0; i < 4; i++)
            kept |= (all >> (4 * i + call) & 1) << (4 * tile + i);
    }
    return kept;
}

/* Where the results of rows that follow each other go: to f32 or to bf16 rows, `ld` apart. */
struct result_rows {
    float *f32;
    uint16_t *bf16;
    int64_t ld;
};

static inline __device__ result_rows results_from(float *f32, uint16_t *bf16, int64_t first,
                                                  int64_t ld)
{
    result_rows rows = {bf16 ? NULL : f32 + first, bf16 ? bf16 + first : NULL, ld};
    return rows;
}

/* Stores the warp's results [16, WIDTH] to rows of which `rows` exist. bf16 rows are whole: their
 * heads have a multiple of COPIED columns. */
template <int WIDTH>
static inline __device__ void store_results(const float (*results)[4], int head_width,
                                            const result_rows &to, int rows)
{
    struct alignas(8) two {
        float x[2];
    };
    int lane = (int)(threadIdx.x % WARP);
    bool whole = head_width % 2 == 0 && to.ld % 2 == 0 && (uintptr_t)to.f32 % sizeof(two) == 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = lane / 4 + 8 * half;
        if (row >= rows)
            continue;
#pragma unroll
        for (int tile = 0; tile < WIDTH / PRODUCT_COLUMNS; tile++) {
            int column = tile * PRODUCT_COLUMNS + lane % 4 * 2;
            int64_t at = row * to.ld + column;
            const float *from = results[tile] + 2 * half;
            if (column >= head_width)
                continue;
            if (to.bf16)
                *(unsigned *)(to.bf16 + at) = two_rounded(from[0], from[1]);
            else if (whole)
                *(two *)(to.f32 + at) = two{{from[0], from[1]}};
            else
                for (int i = 0; i < 2 && column + i < head_width; i++)
                    to.f32[at + i] = from[i];
        }
    }
}

/* ---- Launching -------------------------------------------------------------------------- */

/* As sli_launch_attention and its backward, for bf16. */
cudaError_t sli_launch_bf16_attention(const sli_attention *a, void *scratch, cudaStream_t stream);
size_t sli_scratch_bf16_attention_backward(const sli_attention_backward *a);
cudaError_t sli_launch_bf16_attention_backward(const sli_attention_backward *a, void *scratch,
                                               cudaStream_t stream);

/* How many bf16 elements `heads` rows of heads take, in a multiple of 16 bytes. */
static inline int64_t rounded_count(int64_t heads, int64_t head_width)
{
    return heads * (divide_up(head_width, COPIED) * COPIED);
}

/* The bf16 matrices of q, k and v: the caller's, or `heads` rows of heads in f32, rounded to
 * `room`, which is 16-byte aligned. */
cudaError_t sli_round_heads(const float *f32, const uint16_t *bf16, int64_t heads,
                            int64_t head_width, void *room, const bfloat **out,
                            cudaStream_t stream);

/* Rows of heads in qkv. Of the arguments of attention or its backward, as the next. */
template <class Arguments> static inline int64_t rows_of_heads(const Arguments *a)
{
    return a->samples * a->positions * (a->heads + 2 * a->key_heads);
}

template <class Arguments>
static inline rounded_heads rounded_heads_of(const bfloat *qkv, const Arguments *a)
{
    int width = (int)rounded_count(1, a->head_width);
    return {qkv,   (int)a->positions, (int)a->heads, (int)a->key_heads, (int)a->head_width,
            width, a->causal};
}

/* Launches the kernel in large blocks, or where the GPU lacks the shared memory for these, in small
 * ones. */
template <class Large, class Small, int WIDTH, class Kernel, class... Arguments>
static cudaError_t launch_blocks(cudaStream_t stream, int64_t tasks, int64_t positions,
                                 int matrices, Kernel large, Kernel small, Arguments... arguments)
{
    size_t bytes = shared_bytes<Large, WIDTH>(matrices);
    int64_t rows = Large::ROWS;
    unsigned threads = Large::THREADS;
    Kernel kernel = large;
    if (cudaFuncSetAttribute(large, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) !=
        cudaSuccess) {
        (void)cudaGetLastError(); /* or the next launch reports it */
        bytes = shared_bytes<Small, WIDTH>(matrices);
        rows = Small::ROWS;
        threads = Small::THREADS;
        kernel = small;
        cudaError_t error =
            cudaFuncSetAttribute(small, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        if (error != cudaSuccess)
            return error;
    }
    int64_t blocks = tasks * divide_up(positions, rows);
    if (blocks > INT32_MAX || positions > INT32_MAX)
        return cudaErrorInvalidValue;
    return launch_with_shared(stream, dim3((unsigned)blocks), dim3(threads), bytes, kernel,
                              arguments...);
}

#endif
