/* The CPU kernels that are compiled once for each instruction set.
 *
 * Each works on a range of rows, columns or elements with plain loops; the files beside this one
 * cut operations into ranges, by their shapes alone. A kernel never waits, allocates or asks which
 * thread it runs on. */
#ifndef SLI_DEVICE_CPU_KERNELS_H
#define SLI_DEVICE_CPU_KERNELS_H

#include "device/device.h"

/* A block of one head's score matrix. Rows are the queries first_query … first_query + rows - 1. */
typedef struct sli_score_block {
    int64_t rows, columns; /* columns: how many keys the block's last query may see */
    int64_t ld;            /* row distance of `scores` and `grads` */
    int64_t positions;     /* of a sample: as many columns a row of the dropout has */
    int64_t first_query;
    int64_t dropout_row; /* the first query's row in the dropout's numbering */
    bool causal;
    float scale;
    const sli_dropout *dropout;
    float *log_sum_exp; /* [rows] or NULL: written by forward, read by backward */
} sli_score_block;

/* A tile of one head's scores, with keys as rows: element (key, query) is at key * lanes + query.
 * So what is a sum over keys for each query is one over rows, in the lanes of vectors. */
typedef struct sli_score_tile {
    int64_t keys;     /* at most SLI_TILE */
    int64_t lanes;    /* queries, with others behind them that nobody reads: a multiple of
                         SLI_SMALL_LEAST, at most SLI_TILE */
    int64_t distance; /* query i sees the keys 0 … i + distance */
    float scale;
    const float *multipliers; /* dropout's, [keys, lanes], or NULL */
} sli_score_tile;

enum { SLI_TILE = 64 };

/* What is known to be zero, or not needed, in a product of square causal scores. */
typedef enum sli_triangle {
    SLI_WHOLE,
    SLI_A_LOWER, /* a[i, k] is 0 for k > i */
    SLI_A_UPPER, /* a[i, k] is 0 for k < i */
    SLI_C_LOWER, /* c[i, j] is not needed for j > i, and need not be written */
    SLI_C_UPPER  /* c[i, j] is not needed for j < i, and need not be written */
} sli_triangle;

/* c [m, n] = a [m, k] b [k, n], or c += it. a's element (i, k) is a[i * a_row + k * a_step]. n is
 * at least SLI_SMALL_LEAST, and a multiple of it where it `adds`; m and k are at least 1. */
typedef struct sli_small_product {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    sli_triangle triangle;
    bool adds;
} sli_small_product;

enum { SLI_SMALL_LEAST = 16 };

typedef struct sli_cpu_kernels {
    const char *isa;

    /* A product's epilogue on a panel of c; first_column is a multiple of 4. `from` [rows, columns]
     * with row distance ld is the product's panel, which may already lie in c. */
    void (*epilogue)(const sli_gemm *gemm, const float *from, int64_t ld, int64_t first_row,
                     int64_t rows, int64_t first_column, int64_t columns);
    /* Works on rows of grad and adds their column sums to `sums` [columns], which may be NULL. */
    void (*epilogue_backward)(const sli_epilogue_backward *arguments, int64_t first_row,
                              int64_t rows, float *sums);

    void (*embedding)(const sli_embedding *arguments, int64_t first_row, int64_t rows);
    /* All rows of a range of columns; first_column is a multiple of 4. */
    void (*embedding_backward)(const sli_embedding_backward *arguments, int64_t first_column,
                               int64_t columns);

    void (*add_dropout)(const sli_add_dropout *arguments, int64_t first_row, int64_t rows);
    void (*add_norm)(const sli_add_norm *arguments, int64_t first_row, int64_t rows);
    /* Adds what the rows contribute to grad_weight and grad_bias to the two sums [width]; bias_sums
     * is NULL with rms. */
    void (*add_norm_backward)(const sli_add_norm_backward *arguments, int64_t first_row,
                              int64_t rows, float *weight_sums, float *bias_sums);

    void (*swiglu)(const sli_swiglu *arguments, int64_t first_row, int64_t rows);
    void (*swiglu_backward)(const sli_swiglu_backward *arguments, int64_t first_row, int64_t rows);
    void (*rotary)(const sli_rotary *arguments, int64_t first_row, int64_t rows);

    /* scores: q k^T -> dropout(softmax(scale q k^T)), and 0 for keys that a query may not see. */
    void (*softmax)(const sli_score_block *block, float *scores);
    /* scores: q k^T -> dropout(p); grads: gradient of dropout(p) -> gradient of q k^T.
     * `out_dot_grad` [rows] holds the sums over a row of out times its gradient. */
    void (*softmax_backward)(const sli_score_block *block, float *scores, float *grads,
                             const float *out_dot_grad);
    /* inner[row] = sum over width of a[row] * b[row]; both have row distance ld. */
    void (*row_products)(int64_t rows, int64_t width, int64_t ld, const float *a, const float *b,
                         float *inner);

    /* scores: k q^T -> dropout(e^(scale * (score - largest))), and 0 for keys that a query may not
     * see. For each query, `largest` and `sums` [lanes] are the largest score and the sum of the
     * exponentials, before dropout, of the keys of earlier tiles (-INFINITY and 0 without any), and
     * then of these too; corrections [lanes]: by what earlier results must be multiplied. */
    void (*softmax_tile)(const sli_score_tile *tile, float *scores, float *largest, float *sums,
                         float *corrections);
    /* scores: k q^T -> dropout(p); grads: gradient of dropout(p) -> gradient of k q^T.
     * `out_dot_grad` [lanes] as in softmax_backward. */
    void (*softmax_tile_backward)(const sli_score_tile *tile, float *scores, float *grads,
                                  const float *log_sum_exp, const float *out_dot_grad);
    /* to [rows, columns] = dropout's multipliers from `first_row`, and from `first_column`, a
     * multiple of 4, of rows that have row_columns columns. */
    void (*multipliers)(const sli_dropout *dropout, int64_t row_columns, int64_t first_row,
                        int64_t rows, int64_t first_column, int64_t columns, float *to);
    /* Multiplies row i of x [rows, width] by factors[i]. */
    void (*scale_rows)(int64_t rows, int64_t width, float *x, const float *factors);

    void (*small_product)(const sli_small_product *product);
    /* to [columns, rows] = the transpose of from [rows, columns] with row distance ld. */
    void (*transpose)(int64_t rows, int64_t columns, const float *from, int64_t ld, float *to);

    /* Adds the gradient's column sums to `sums` [classes], which may be NULL. */
    void (*cross_entropy)(const sli_cross_entropy *arguments, int64_t first_row, int64_t rows,
                          float *sums);

    void (*convert)(const sli_convert *arguments, int64_t first, int64_t count);
    void (*add)(int64_t count, float *to, const float *from);
    void (*sgd)(const sli_sgd *arguments, int64_t first, int64_t count);
    void (*adamw)(const sli_adamw *arguments, int64_t first, int64_t count);
    double (*norm_term)(sli_norm_kind kind, int64_t count, const float *x);
    /* `first` is a multiple of 64; `to` is the whole array. */
    void (*initialize)(const sli_init *init, sli_philox_key key, uint32_t site, int64_t first,
                       int64_t count, float *to);
} sli_cpu_kernels;

extern const sli_cpu_kernels sli_cpu_kernels_baseline;
#ifdef SLI_HAVE_X86_KERNELS
extern const sli_cpu_kernels sli_cpu_kernels_avx2;
extern const sli_cpu_kernels sli_cpu_kernels_avx512;
#endif

#endif
