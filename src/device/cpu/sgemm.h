/* oneDNN's single precision product, on the calling thread alone. */
#ifndef SLI_DEVICE_CPU_SGEMM_H
#define SLI_DEVICE_CPU_SGEMM_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sli_sgemm_shape {
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
} sli_sgemm_shape;

/* c = op(a) op(b) + beta c, row-major; beta is 0 or 1, with 0 c is not read. Returns 0, or oneDNN's
 * code for sli_sgemm_error. Sizes of 0 are allowed. */
int sli_sgemm(const sli_sgemm_shape *shape, const float *a, const float *b, float beta, float *c);

/* SL_OK for 0; else the error, with a sentence. */
sl_status sli_sgemm_error(const char *who, const sli_sgemm_shape *shape, int code);

#endif
