#include "device/cpu/sgemm.h"

#include <inttypes.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <string.h>

/* oneDNN asks OpenMP how many threads it may use. The answer belongs to the calling thread, which
 * may be the user's own: it is put back afterwards. */
static int call_on_one_thread(const sli_sgemm_shape *s, const float *a, const float *b, float beta,
                              float *c)
{
    int threads = omp_get_max_threads();
    if (threads != 1)
        omp_set_num_threads(1);
    dnnl_status_t code = dnnl_sgemm(s->transpose_a ? 'T' : 'N', s->transpose_b ? 'T' : 'N', s->m,
                                    s->n, s->k, 1.0f, a, s->lda, b, s->ldb, beta, c, s->ldc);
    if (threads != 1)
        omp_set_num_threads(threads);
    return (int)code;
}

int sli_sgemm(const sli_sgemm_shape *shape, const float *a, const float *b, float beta, float *c)
{
    if (shape->m == 0 || shape->n == 0)
        return 0;
    if (shape->k > 0)
        return call_on_one_thread(shape, a, b, beta, c);
    for (int64_t row = 0; beta == 0 && row < shape->m; row++)
        memset(c + row * shape->ldc, 0, (size_t)shape->n * sizeof *c);
    return 0;
}

sl_status sli_sgemm_error(const char *who, const sli_sgemm_shape *shape, int code)
{
    if (code == 0)
        return SL_OK;
    sl_status status = code == dnnl_out_of_memory ? SL_ERR_MEMORY : SL_ERR_INTERNAL;
    return sl_error(status,
                    "%s: oneDNN could not multiply %" PRId64 " x %" PRId64 " by %" PRId64
                    " x %" PRId64 ": %s (%d)",
                    who, shape->m, shape->k, shape->k, shape->n,
                    code == dnnl_out_of_memory ? "out of memory" : "it refused", code);
}
