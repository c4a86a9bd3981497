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

/* What is known to be zero, or not needed, in a product of square causal scores. */
typedef enum sli_triangle {
    SLI_WHOLE,
    SLI_A_LOWER, /* a[i, k] is 0 for k > i */
    SLI_A_UPPER, /* a[i, k] is 0 for k < i */
    SLI_C_LOWER  /* c[i, j] is not needed for j > i, and need not be written */
} sli_triangle;

/* c [m, n] = a [m, k] b [k, n]. a's element (i, k) is a[i * a_row + k * a_step]. n is at least
 * SLI_SMALL_LEAST, m and k at least 1. */
typedef struct sli_small_product {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    sli_triangle triangle;
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
     * `inner` [rows] holds the sums over a row of out times its gradient. */
    void (*softmax_backward)(const sli_score_block *block, float *scores, float *grads,
                             const float *inner);
    /* inner[row] = sum over width of a[row] * b[row]; both have row distance ld. */
    void (*row_products)(int64_t rows, int64_t width, int64_t ld, const float *a, const float *b,
                         float *inner);

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
