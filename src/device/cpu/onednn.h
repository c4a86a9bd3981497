/* oneDNN's matrix products, of f32 or bf16, on the calling thread alone.
 *
 * dnnl_sgemm takes any product. oneDNN's matmul primitive is for a [m, k] times the transpose of
 * b [n, k]: forward products multiply by a transposed weight. With the few rows of a micro-batch,
 * dnnl_sgemm spends a quarter of its time rearranging the weight; the primitive has kernels
 * (brgemm) that do it faster, if all three matrices are dense. It also takes bf16 matrices, of any
 * layout. A primitive is built for one shape, so a device keeps those that it has used. */
#ifndef SLI_DEVICE_CPU_ONEDNN_H
#define SLI_DEVICE_CPU_ONEDNN_H

#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- dnnl_sgemm ------------------------------------------------------------------------- */

typedef struct sli_sgemm_shape {
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
} sli_sgemm_shape;

/* c = op(a) op(b) + beta c, row-major; beta is 0 or 1, with 0 c is not read. Returns 0, or oneDNN's
 * code for sli_sgemm_error. Sizes of 0 are allowed. */
int sli_sgemm(const sli_sgemm_shape *shape, const float *a, const float *b, float beta, float *c);

/* How many terms dnnl_sgemm sums before it adds to c, of panels up to about 500 x 500. A product
 * has the same bits if it is made in such steps along k while two or more are left, and then of the
 * rest. */
int64_t sli_sgemm_step(bool transpose_a);

/* Whether dnnl_sgemm takes up to 2.7 times as long where rows along k of an operand (of a^T, or of
 * b in a product of m rows) lie at this distance, at which they fall on few places of a cache. With
 * AVX2 alone: multiples of 2 KiB. With AVX-512: of 8 KiB in a product a b, which reads b in place,
 * or of 4 KiB where enough rows repay the copy; of 32 KiB in a^T b. */
bool sli_sgemm_is_slowed_by(int64_t ld, bool transpose_a, int64_t m);

/* Makes the library compile its kernels, some MB of memory, as the first product does. */
void sli_sgemm_load(void);

/* SL_OK for 0; else the error, with a sentence. */
sl_status sli_sgemm_error(const char *who, const sli_sgemm_shape *shape, int code);

/* ---- The matmul primitive --------------------------------------------------------------- */

typedef struct sli_matmul sli_matmul;                     /* a device's primitives */
typedef struct sli_matmul_primitive sli_matmul_primitive; /* one of them */

/* Whether products of bf16 use AMX. */
bool sli_matmul_has_amx(void);

/* `threads`: how many may run a primitive at once. */
sl_status sli_matmul_create(int threads, sli_matmul **out);
void sli_matmul_destroy(sli_matmul **matmul);

/* Primitives are found and run only between these two, by the caller and the threads that work for
 * it. */
void sli_matmul_lock(sli_matmul *matmul);
void sli_matmul_unlock(sli_matmul *matmul);

/* c [m, n] = a [m, k] b [k, n]. a's element (i, k) is a[i * a_row + k * a_step], b's (k, j)
 * b[k * b_row + j * b_step]. */
typedef struct sli_matmul_shape {
    int64_t bf16; /* 1: a and b are, 0: all is f32 */
    int64_t adds; /* 1: c += a b */
    int64_t m, n, k;
    int64_t a_row, a_step, b_row, b_step, ldc;
} sli_matmul_shape;

enum { SLI_MATMUL_AT_ONCE = 4 };
/* The primitive for a shape. It is valid until the unlock, or until SLI_MATMUL_AT_ONCE others are
 * asked for. `*out` is NULL without an error where oneDNN has no such kernel for this processor. */
sl_status sli_matmul_find(sli_matmul *matmul, const sli_matmul_shape *shape,
                          const sli_matmul_primitive **out);

/* Memory that a run needs beside its matrices. */
int64_t sli_matmul_scratch_floats(const sli_matmul_primitive *entry);

/* Computes c. `thread` is 0 … threads - 1, and no two run with the same at once. Returns 0, or
 * oneDNN's code. */
int sli_matmul_run(sli_matmul *matmul, const sli_matmul_primitive *entry, int thread, const void *a,
                   const void *b, float *c, float *scratch);

#endif
