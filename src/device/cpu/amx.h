/* Products by AMX, whose tiles multiply pairs of bf16 numbers and add in f32.
 *
 * An element of c is one sum, in steps of SLI_AMX_STEP terms from the first on, each of which is
 * added alike: a row of c has the same bits in any product. Subnormal elements and sums count as
 * 0. */
#ifndef SLI_DEVICE_CPU_AMX_H
#define SLI_DEVICE_CPU_AMX_H

#include "device/cpu/kernels.h"

/* Asks the system to let this process use AMX. Returns whether it does, and this build has the
 * kernel. For processors with AVX-512 alone. */
bool sli_amx_request(void);

/* A matrix of rows, each with the terms of sums. */
typedef struct sli_amx_matrix {
    const void *values;
    bool is_bf16;       /* else f32, which is rounded to bf16 */
    bool has_term_rows; /* element (row, term) lies at term * ld + row; else at row * ld + term */
    int64_t ld;
} sli_amx_matrix;

enum {
    SLI_AMX_BLOCK = 16,  /* rows and columns of c are made so many at a time */
    SLI_AMX_STEP = 32,   /* terms of a sum that are added by one instruction */
    SLI_AMX_STRIP = 96,  /* rows of a that are copied at a time */
    SLI_AMX_TERMS = 512, /* and their terms */
};

/* c [m, n] = a [m, k] b [n, k]^T, or c += it. */
typedef struct sli_amx_product {
    int64_t n, k;
    sli_amx_matrix a, b;
    sli_triangle triangle; /* else k is at most SLI_AMX_TERMS; b is finite where a is 0 */
    bool adds;
    uint16_t *room; /* [sli_amx_count_room(n, k)] for copies of a and b, 64-byte aligned */
} sli_amx_product;

/* In bf16 numbers. */
int64_t sli_amx_count_room(int64_t n, int64_t k);

/* Between these two the thread has the processor's tiles, and b's copy lies in the room. */
void sli_amx_begin(const sli_amx_product *product);
void sli_amx_end(void);

/* At most SLI_AMX_STRIP rows of c, from first_row on, which is a multiple of that. `c` is the first
 * of them, and is of whole SLI_AMX_BLOCKs: what lies beyond the rows and columns has undefined
 * content. */
void sli_amx_multiply(const sli_amx_product *product, int64_t first_row, int64_t rows, float *c,
                      int64_t ldc);

enum { SLI_AMX_MOST = 256 }; /* columns or terms of a small product */

/* As the kernels' small_product, of elements rounded to bf16. p->m is at most SLI_TILE, n a
 * multiple of SLI_SMALL_LEAST, one of n and k at most SLI_TILE and the other SLI_AMX_MOST. b is
 * finite where a is 0. c has whole SLI_AMX_BLOCKs of rows: those beyond m get undefined content. */
void sli_amx_small_product(const sli_small_product *p);

#endif
