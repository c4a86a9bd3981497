/* Trials of panels with other numbers of rows, for heights.h. */
#include "core/bf16.h"
#include "device/cpu/cpu_gemm.h"

#include <string.h>

/* Products of one shape with rows that are all alike. */
typedef struct height_trials {
    sl_device *device;
    const sli_gemm_job *job;
    sli_pool_task panel;
    int64_t columns;
    uint32_t draw;
} height_trials;

/* Values that repeat after a number of elements that no row has. */
static void draw_values(uint32_t state, bool bf16, int64_t count, void *to)
{
    enum { PERIOD = 4099 };
    int64_t drawn = sli_smaller(count, PERIOD);
    size_t element = bf16 ? sizeof(uint16_t) : sizeof(float);
    for (int64_t i = 0; i < drawn; i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(int32_t)state * 0x1p-31f;
        if (bf16)
            ((uint16_t *)to)[i] = sli_bf16_from_f32(value);
        else
            ((float *)to)[i] = value;
    }
    for (; drawn < count; drawn += sli_smaller(drawn, count - drawn))
        memcpy((char *)to + (size_t)drawn * element, to,
               (size_t)sli_smaller(drawn, count - drawn) * element);
}

/* Rows that are all alike. */
static void draw_rows(uint32_t state, bool bf16, int64_t rows, int64_t columns, int64_t ld,
                      void *to)
{
    size_t element = bf16 ? sizeof(uint16_t) : sizeof(float);
    draw_values(state, bf16, columns, to);
    for (int64_t row = 1; row < rows; row++)
        memcpy((char *)to + (size_t)(row * ld) * element, to, (size_t)columns * element);
}

/* The trials' product with `height` rows. *made: whether there is a way to multiply them. */
static sl_status multiply_alike(const height_trials *trials, int64_t height, bool padded, float *a,
                                const float *b, float *c, bool *made)
{
    const sli_gemm *g = trials->job->gemm;
    sli_gemm product = {.transpose_b = g->transpose_b,
                        .bf16 = g->bf16,
                        .m = height,
                        .n = trials->columns,
                        .k = g->k,
                        .a = a,
                        .lda = padded ? g->k : g->lda,
                        .b = b,
                        .ldb = g->ldb,
                        .beta = g->beta,
                        .c = c,
                        .ldc = padded ? trials->columns : g->ldc};
    sli_gemm_job job = {.cpu = trials->job->cpu,
                        .gemm = &product,
                        .widens = trials->job->widens,
                        .rows = {height, height, 1},
                        .columns = {product.n, product.n, 1},
                        .use_matmul = trials->job->use_matmul};
    atomic_init(&job.code, 0);
    sli_gemm_multiply_own_rows(&job);
    sli_gemm_set_floats(&job, 0);
    if (job.use_matmul)
        SL_TRY(sli_gemm_find_primitives(&job));
    *made = job.use_matmul == trials->job->use_matmul;
    if (!*made)
        return SL_OK;
    draw_rows(trials->draw, g->bf16, height, g->k, product.lda, a);
    draw_rows(trials->draw, false, height, product.n, product.ldc, c);
    size_t bytes = (size_t)job.thread_floats * sizeof(float);
    void *workspace;
    SL_TRY(sli_device_allocate(trials->device, SL_MEMORY_WORKSPACE, bytes, &workspace));
    job.workspace = workspace;
    trials->panel(&job, 0, 0);
    sli_device_release(trials->device, SL_MEMORY_WORKSPACE, workspace, bytes);
    sli_sgemm_shape shape = {.m = height, .n = product.n, .k = g->k};
    return sli_sgemm_error("gemm", &shape, atomic_load(&job.code));
}

static bool are_alike(int64_t rows, int64_t columns, const float *c, int64_t ldc, const float *row)
{
    for (int64_t i = 0; i < rows; i++)
        if (memcmp(c + i * ldc, row, (size_t)columns * sizeof *c) != 0)
            return false;
    return true;
}

static sl_status compare_heights(const height_trials *trials, bool padded, int64_t height, float *a,
                                 float *b, float *reference, float *c, bool *passes)
{
    const sli_gemm *g = trials->job->gemm;
    int64_t n = trials->columns;
    *passes = false;
    draw_values(~trials->draw, g->bf16, g->transpose_b ? n * g->ldb : g->k * g->ldb, b);
    SL_TRY(multiply_alike(trials, SLI_HEIGHT, true, a, b, reference, passes));
    if (*passes)
        SL_TRY(multiply_alike(trials, height, padded, a, b, c, passes));
    *passes = *passes && are_alike(SLI_HEIGHT, n, reference, n, reference) &&
              are_alike(height, n, c, padded ? n : g->ldc, reference);
    return SL_OK;
}

/* Few columns are tried again with other values, for two sums of few terms may have the same bits
 * in another order. */
static sl_status try_height(void *context, int64_t rows, int64_t height, bool *passes)
{
    enum { ELEMENTS = 256 };
    height_trials *trials = context;
    const sli_gemm *g = trials->job->gemm;
    int64_t of_a = sli_aligned_floats(sli_larger(height, SLI_HEIGHT) * g->lda);
    int64_t of_b = sli_aligned_floats(g->transpose_b ? trials->columns * g->ldb : g->k * g->ldb);
    int64_t of_reference = sli_aligned_floats(SLI_HEIGHT * trials->columns);
    size_t bytes =
        (size_t)(of_a + of_b + of_reference + sli_aligned_floats(height * g->ldc)) * sizeof(float);
    void *memory;
    SL_TRY(sli_device_allocate(trials->device, SL_MEMORY_WORKSPACE, bytes, &memory));
    float *a = memory, *b = a + of_a, *reference = b + of_b, *c = reference + of_reference;
    sl_status status = SL_OK;
    *passes = true;
    for (int64_t made = 0; made < ELEMENTS && *passes && status == SL_OK; made += trials->columns) {
        trials->draw++;
        status = compare_heights(trials, height > rows, height, a, b, reference, c, passes);
    }
    sli_device_release(trials->device, SL_MEMORY_WORKSPACE, memory, bytes);
    return status;
}

sl_status sli_gemm_find_heights(sl_device *device, sli_gemm_job *job, sli_pool_task panel)
{
    const sli_gemm *g = job->gemm;
    int64_t most = sli_gemm_is_invariant(job) ? 0 : g->m;
    while (most < g->m) {
        most = g->m;
        for (int i = 0; i < 4; i++) {
            int64_t rows = sli_end_range(&job->rows, i / 2).count;
            int64_t *height = &job->heights[i / 2][i % 2];
            height_trials trials = {device, job, panel, sli_end_range(&job->columns, i % 2).count,
                                    .draw = 0};
            sli_height_shape shape = {.n = trials.columns,
                                      .k = g->k,
                                      .lda = g->lda,
                                      .ldb = g->ldb,
                                      .ldc = g->ldc,
                                      .kind = g->transpose_b | g->bf16 << 1 | job->widens << 2 |
                                              job->use_matmul << 3 | (g->beta != 0) << 4};
            SL_TRY(sli_heights_find(&job->cpu->heights, &shape, rows, try_height, &trials, height));
            if (*height < rows)
                most = sli_smaller(most, *height);
        }
        if (most < g->m)
            job->rows = sli_ranges_of(g->m, most);
    }
    return SL_OK;
}
