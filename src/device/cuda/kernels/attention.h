/* Products of tiles for attention, and what its three kernels have in common.
 *
 * A block of threads has TILE rows (of one sample's head) and walks over TILE columns at a time;
 * rows and columns are queries and keys, or keys and queries. Thread (x, y) of the 16 x 16 has the
 * scores of rows 4 y … 4 y + 3 and columns 4 x … 4 x + 3, and of results with head_width columns
 * the same rows and, in each TILE columns, columns 4 x … 4 x + 3. Scores lie in registers, and in
 * shared memory only for the product with another matrix: no matrix of positions x positions is
 * ever in memory. (Dao et al., "FlashAttention", 2022.) */
#ifndef SLI_DEVICE_CUDA_KERNELS_ATTENTION_H
#define SLI_DEVICE_CUDA_KERNELS_ATTENTION_H

#include "device/cuda/kernels/dropout.h"
#include "device/cuda/kernels/reduce.h"

enum { TILE = 64, SIDE = 16, TILE_THREADS = SIDE * SIDE, DEPTH = 32 };
/* Row distances in shared memory, so that threads of a warp read from different banks. */
enum { PANEL_LD = DEPTH + 4, SCORES_LD = TILE + 4 };

constexpr float LOG2_E = 1.44269504f;

/* Rows of a matrix that begin at `at`; `rows` of them exist, maybe fewer than a tile's. */
struct tile_rows {
    const float *at;
    int64_t ld, rows;
};

struct alignas(32) tile_memory {
    float panels[2 * TILE * PANEL_LD]; /* of two matrices, [TILE, DEPTH]; or one, [TILE, TILE] */
    float scores[TILE * SCORES_LD];
};

/* Where a head's matrices are, for one task: a sample's head. */
struct head_layout {
    int64_t positions, heads, key_heads, head_width;
    bool causal, whole; /* rows of the head can be read by fours */
};

/* A block's task, a sample's head, the head of its keys, and the block's first row. */
struct tile_place {
    int sample, head, key_head, task;
    int64_t first;
};

/* How many heads of queries have one of keys. */
static inline __device__ int shared_heads(const head_layout &h)
{
    return (int)h.heads / (int)h.key_heads;
}

/* How far a position's row of qkv is from the next one's. */
static inline __device__ int64_t qkv_ld(const head_layout &h)
{
    return (h.heads + 2 * h.key_heads) * h.head_width;
}

/* Of a block that has queries. With the causal mask, those at the end see most: their tiles come
 * first, so that the last blocks are short. */
static inline __device__ tile_place place_of_queries(const head_layout &h)
{
    int64_t tiles = (h.positions + TILE - 1) / TILE;
    int task = (int)divide(blockIdx.x, tiles), sample = (int)divide(task, h.heads);
    int head = task - sample * (int)h.heads;
    tile_place place = {sample, head, head / shared_heads(h), task,
                        (tiles - 1 - (blockIdx.x - task * tiles)) * TILE};
    return place;
}

/* Of a block that has keys: the first of the heads that share them. */
static inline __device__ tile_place place_of_keys(const head_layout &h)
{
    int64_t tiles = (h.positions + TILE - 1) / TILE;
    int key_task = (int)divide(blockIdx.x, tiles), sample = (int)divide(key_task, h.key_heads);
    int key_head = key_task - sample * (int)h.key_heads, shared = shared_heads(h);
    tile_place place = {sample, key_head * shared, key_head, key_task * shared,
                        (blockIdx.x - key_task * tiles) * TILE};
    return place;
}

/* The elements where a row of the task begins: in qkv, of its matrix 0, 1 or 2 (q, k, v); in out.
 */
static inline __device__ int64_t qkv_offset(const head_layout &h, const tile_place &at,
                                            int64_t position, int matrix)
{
    int64_t head = matrix == 0 ? at.head : h.heads + (matrix - 1) * h.key_heads + at.key_head;
    return (at.sample * h.positions + position) * qkv_ld(h) + head * h.head_width;
}

static inline __device__ int64_t out_offset(const head_layout &h, const tile_place &at,
                                            int64_t position)
{
    return ((at.sample * h.positions + position) * h.heads + at.head) * h.head_width;
}

/* The rows from `position`. */
static inline __device__ tile_rows qkv_rows(const head_layout &h, const float *qkv,
                                            const tile_place &at, int64_t position, int matrix)
{
    tile_rows rows = {qkv + qkv_offset(h, at, position, matrix), qkv_ld(h), h.positions - position};
    return rows;
}

static inline __device__ tile_rows out_rows(const head_layout &h, const float *out,
                                            const tile_place &at, int64_t position)
{
    tile_rows rows = {out + out_offset(h, at, position), h.heads * h.head_width,
                      h.positions - position};
    return rows;
}

/* ---- Products --------------------------------------------------------------------------- */

/* Four elements of a tile's row; 0 where the matrix ends. */
static inline __device__ four load_of_row(const head_layout &h, const tile_rows &m, int row,
                                          int64_t column)
{
    int64_t count = row < m.rows ? h.head_width - column : 0;
    return load_four(m.at + row * m.ld + column, count, h.whole && count > 0);
}

/* DEPTH columns of TILE rows. Where `spread`, row 4 x + i goes to 16 i + x: then threads that
 * follow each other read rows that do. */
static inline __device__ void load_panel(const head_layout &h, const tile_rows &m,
                                         int64_t first_column, float *panel, bool spread)
{
    for (int at = (int)threadIdx.x; at < TILE * DEPTH / 4; at += TILE_THREADS) {
        int row = at / (DEPTH / 4), column = at % (DEPTH / 4) * 4;
        int to = spread ? row % 4 * SIDE + row / 4 : row;
        four f = load_of_row(h, m, row, first_column + column);
        store_four(panel + to * PANEL_LD + column, f, 4, true);
    }
}

static inline __device__ float product_of(four a, four b)
{
    return a.x[0] * b.x[0] + a.x[1] * b.x[1] + a.x[2] * b.x[2] + a.x[3] * b.x[3];
}

/* TILE columns of m's rows, without gaps. */
static inline __device__ void load_columns(const head_layout &h, const tile_rows &m,
                                           int64_t first_column, float *to)
{
    for (int at = (int)threadIdx.x; at < TILE * TILE / 4; at += TILE_THREADS) {
        int row = at / (TILE / 4), column = at % (TILE / 4) * 4;
        store_four(to + 4 * at, load_of_row(h, m, row, first_column + column), 4, true);
    }
}

/* Products in f32. tensor_products.h has others, with the same functions. */
struct f32_products {
    /* scores[i] = a's row 4 y + i times b's rows 4 x … 4 x + 3. */
    static inline __device__ void multiply_rows(const head_layout &h, const tile_rows &a,
                                                const tile_rows &b, tile_memory *memory,
                                                four *scores)
    {
        float *panel_a = memory->panels, *panel_b = memory->panels + TILE * PANEL_LD;
        const float *rows_a = panel_a + threadIdx.x / SIDE * 4 * PANEL_LD;
        const float *rows_b = panel_b + threadIdx.x % SIDE * PANEL_LD;
        for (int i = 0; i < 4; i++)
            scores[i] = four{{0, 0, 0, 0}};
        for (int64_t first = 0; first < h.head_width; first += DEPTH) {
            __syncthreads(); /* until the panels' last content has been read */
            load_panel(h, a, first, panel_a, false);
            load_panel(h, b, first, panel_b, true);
            __syncthreads();
            for (int k = 0; k < DEPTH && first + k < h.head_width; k += 4) {
                four of_b[4];
                for (int j = 0; j < 4; j++)
                    of_b[j] = load_four(rows_b + j * SIDE * PANEL_LD + k, 4, true);
                for (int i = 0; i < 4; i++) {
                    four of_a = load_four(rows_a + i * PANEL_LD + k, 4, true);
                    for (int j = 0; j < 4; j++)
                        scores[i].x[j] += product_of(of_a, of_b[j]);
                }
            }
        }
    }

    /* For multiply_scores. */
    static inline __device__ void store_scores(const four *scores, tile_memory *memory)
    {
        float *to = memory->scores + threadIdx.x / SIDE * 4 * SCORES_LD + threadIdx.x % SIDE * 4;
        __syncthreads(); /* until the scores before them have been read */
        for (int i = 0; i < 4; i++)
            store_four(to + i * SCORES_LD, scores[i], 4, true);
    }

    /* results[wide][i] += the stored scores' row 4 y + i times m's columns, in each TILE of them.
     */
    template <int WIDE>
    static inline __device__ void multiply_scores(const head_layout &h, const tile_rows &m,
                                                  tile_memory *memory, four (*results)[4])
    {
        const float *scores = memory->scores + threadIdx.x / SIDE * 4 * SCORES_LD;
        const float *columns = memory->panels + threadIdx.x % SIDE * 4;
        int rows = m.rows < TILE ? (int)m.rows : (int)TILE; /* behind them, scores are 0 */
#pragma unroll
        for (int wide = 0; wide < WIDE; wide++) {
            if (wide * TILE >= h.head_width)
                break;
            __syncthreads(); /* until the scores are stored, and the panels have been read */
            load_columns(h, m, wide * TILE, memory->panels);
            __syncthreads();
            for (int k = 0; k < rows; k += 4) {
                four of_m[4];
                for (int j = 0; j < 4; j++)
                    of_m[j] = load_four(columns + (k + j) * TILE, 4, true);
                for (int i = 0; i < 4; i++) {
                    four p = load_four(scores + i * SCORES_LD + k, 4, true);
                    for (int j = 0; j < 4; j++)
                        for (int c = 0; c < 4; c++)
                            results[wide][i].x[c] += p.x[j] * of_m[j].x[c];
                }
            }
        }
    }
};

/* Stores the results to the tile's rows that exist. */
template <int WIDE>
static inline __device__ void store_results(const head_layout &h, const four (*results)[4],
                                            float *to, int64_t ld, int64_t rows)
{
#pragma unroll
    for (int wide = 0; wide < WIDE; wide++)
        for (int i = 0; i < 4; i++) {
            int64_t row = threadIdx.x / SIDE * 4 + i, column = wide * TILE + threadIdx.x % SIDE * 4;
            int64_t count = row < rows ? h.head_width - column : 0;
            if (count > 0)
                store_four(to + row * ld + column, results[wide][i], count, h.whole);
        }
}

/* ---- Scores ----------------------------------------------------------------------------- */

/* True where both exist and the query may see the key. */
static inline __device__ bool is_seen(const head_layout &h, int64_t query, int64_t key)
{
    return key < h.positions && query < h.positions && (!h.causal || key <= query);
}

/* Launches the kernel for the least sufficient head width; a task is a sample's head. */
template <class Kernel, class... Arguments>
static cudaError_t launch_tiles(cudaStream_t stream, int64_t tasks, const head_layout &h,
                                Kernel to_64, Kernel to_128, Kernel to_256, Arguments... arguments)
{
    int64_t blocks = tasks * divide_up(h.positions, TILE);
    if (h.head_width > SLI_CUDA_HEAD_WIDTH || blocks > INT32_MAX)
        return cudaErrorInvalidValue;
    Kernel kernel = h.head_width <= 64 ? to_64 : h.head_width <= 128 ? to_128 : to_256;
    return launch(stream, dim3((unsigned)blocks), dim3(TILE_THREADS), kernel, h, arguments...);
}

#endif
