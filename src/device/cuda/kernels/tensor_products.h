/* Products of tiles by tensor cores, of elements in bf16 or TF32, with sums in f32: what
 * f32_products are in attention.h.
 *
 * Each of the block's eight warps has two neighbouring tiles of 16 x 16 of a result of
 * TILE x TILE. Which lane has which of their elements is the hardware's secret, so a result goes
 * through shared memory to the threads that have its rows and columns. */
#ifndef SLI_DEVICE_CUDA_KERNELS_TENSOR_PRODUCTS_H
#define SLI_DEVICE_CUDA_KERNELS_TENSOR_PRODUCTS_H

#include "device/cuda/kernels/attention.h"

#include <mma.h>
#include <type_traits>

namespace wmma = nvcuda::wmma;

enum { TENSOR_SIDE = 16, TENSOR_TILES = 2 };

/* How a matrix's elements lie in shared memory. STEP: columns that one instruction takes; DEPTH:
 * columns of a panel; the row distances of panels and of a matrix [TILE, TILE]. */
struct tf32_elements {
    typedef wmma::precision::tf32 element;
    typedef float stored;
    enum { STEP = 8, DEPTH = 32, PANEL_LD = DEPTH + 4, TILE_LD = TILE + 4 };

    static inline __device__ void store(stored *to, four f)
    {
        for (int i = 0; i < 4; i++)
            f.x[i] = wmma::__float_to_tf32(f.x[i]);
        store_four(to, f, 4, true);
    }
};

template <class Elements> struct tensor_products {
    typedef typename Elements::element element;
    typedef typename Elements::stored stored;
    enum { STEP = Elements::STEP, DEPTH = Elements::DEPTH };
    enum { PANEL_LD = Elements::PANEL_LD, TILE_LD = Elements::TILE_LD };
    typedef wmma::fragment<wmma::accumulator, TENSOR_SIDE, TENSOR_SIDE, STEP, float> sum_tile;

    static_assert(2 * TILE * PANEL_LD * sizeof(stored) <= sizeof(tile_memory::panels),
                  "panels fit");
    static_assert(TILE * TILE_LD * sizeof(stored) <= sizeof(tile_memory::panels), "a matrix fits");
    static_assert(TILE * TILE_LD * sizeof(stored) <= sizeof(tile_memory::scores), "scores fit");
    static_assert(TILE * SCORES_LD * sizeof(float) <= sizeof(tile_memory::panels), "sums fit");

    /* Where the warp's tiles begin. */
    static inline __device__ int tile_row()
    {
        return (int)(threadIdx.x / WARP / TENSOR_TILES) * TENSOR_SIDE;
    }

    static inline __device__ int tile_column(int tile)
    {
        return ((int)(threadIdx.x / WARP % TENSOR_TILES) * TENSOR_TILES + tile) * TENSOR_SIDE;
    }

    static inline __device__ int rounded_depth(int64_t columns, int most)
    {
        return columns < most ? ((int)columns + STEP - 1) / STEP * STEP : most;
    }

    /* COLUMNS columns of m's rows. */
    template <int COLUMNS, int LD>
    static inline __device__ void load_columns(const head_layout &h, const tile_rows &m,
                                               int64_t first_column, stored *to)
    {
        for (int at = (int)threadIdx.x; at < TILE * COLUMNS / 4; at += TILE_THREADS) {
            int row = at / (COLUMNS / 4), column = at % (COLUMNS / 4) * 4;
            Elements::store(to + row * LD + column, load_of_row(h, m, row, first_column + column));
        }
    }

    /* sums += a [TILE, depth] b [depth, TILE]; of a transposed b, rows lie where columns do. */
    template <bool TRANSPOSED, int LD>
    static inline __device__ void add_product(const stored *a, const stored *b, int depth,
                                              sum_tile *sums)
    {
        typedef std::conditional_t<TRANSPOSED, wmma::col_major, wmma::row_major> layout;
        wmma::fragment<wmma::matrix_a, TENSOR_SIDE, TENSOR_SIDE, STEP, element, wmma::row_major>
            of_a;
        wmma::fragment<wmma::matrix_b, TENSOR_SIDE, TENSOR_SIDE, STEP, element, layout> of_b;
        for (int k = 0; k < depth; k += STEP) {
            wmma::load_matrix_sync(of_a, a + tile_row() * LD + k, LD);
#pragma unroll
            for (int tile = 0; tile < TENSOR_TILES; tile++) {
                int column = tile_column(tile);
                wmma::load_matrix_sync(of_b, b + (TRANSPOSED ? column * LD + k : k * LD + column),
                                       LD);
                wmma::mma_sync(sums[tile], of_a, of_b, sums[tile]);
            }
        }
    }

    static inline __device__ void clear_sums(sum_tile *sums)
    {
#pragma unroll
        for (int tile = 0; tile < TENSOR_TILES; tile++)
            wmma::fill_fragment(sums[tile], 0.0f);
    }

    /* Through `memory`, to the thread's four rows and columns of it; returns where they are. */
    static inline __device__ const float *spread_sums(const sum_tile *sums, float *memory)
    {
#pragma unroll
        for (int tile = 0; tile < TENSOR_TILES; tile++)
            wmma::store_matrix_sync(memory + tile_row() * SCORES_LD + tile_column(tile), sums[tile],
                                    SCORES_LD, wmma::mem_row_major);
        __syncthreads();
        return memory + threadIdx.x / SIDE * 4 * SCORES_LD + threadIdx.x % SIDE * 4;
    }

    static inline __device__ void multiply_rows(const head_layout &h, const tile_rows &a,
                                                const tile_rows &b, tile_memory *memory,
                                                four *scores)
    {
        stored *panel_a = (stored *)memory->panels, *panel_b = panel_a + TILE * PANEL_LD;
        sum_tile sums[TENSOR_TILES];
        clear_sums(sums);
        for (int64_t first = 0; first < h.head_width; first += DEPTH) {
            __syncthreads(); /* until the last content of panels and scores has been read */
            load_columns<DEPTH, PANEL_LD>(h, a, first, panel_a);
            load_columns<DEPTH, PANEL_LD>(h, b, first, panel_b);
            __syncthreads();
            add_product<true, PANEL_LD>(panel_a, panel_b,
                                        rounded_depth(h.head_width - first, DEPTH), sums);
        }
        const float *own = spread_sums(sums, memory->scores);
        for (int i = 0; i < 4; i++)
            scores[i] = load_four(own + i * SCORES_LD, 4, true);
    }

    static inline __device__ void store_scores(const four *scores, tile_memory *memory)
    {
        stored *to = (stored *)memory->scores;
        to += threadIdx.x / SIDE * 4 * TILE_LD + threadIdx.x % SIDE * 4;
        __syncthreads(); /* until the scores before them have been read */
        for (int i = 0; i < 4; i++)
            Elements::store(to + i * TILE_LD, scores[i]);
    }

    template <int WIDE>
    static inline __device__ void multiply_scores(const head_layout &h, const tile_rows &m,
                                                  tile_memory *memory, four (*results)[4])
    {
        const stored *scores = (const stored *)memory->scores;
        stored *columns = (stored *)memory->panels;
#pragma unroll
        for (int wide = 0; wide < WIDE; wide++) {
            sum_tile sums[TENSOR_TILES];
            if (wide * TILE >= h.head_width)
                break;
            clear_sums(sums);
            __syncthreads(); /* until the scores are stored, and the panels have been read */
            load_columns<TILE, TILE_LD>(h, m, wide * TILE, columns);
            __syncthreads();
            add_product<false, TILE_LD>(scores, columns, rounded_depth(m.rows, TILE), sums);
            __syncthreads(); /* until the columns have been read */
            const float *own = spread_sums(sums, memory->panels);
            for (int i = 0; i < 4; i++)
                results[wide][i] =
                    sum_of(results[wide][i], load_four(own + i * SCORES_LD, 4, true));
        }
    }
};

typedef tensor_products<tf32_elements> tf32_products;

#endif
