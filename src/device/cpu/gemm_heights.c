/* Trials of panels with other numbers of rows, for heights.h. */
#include "core/bf16.h"
#include "device/cpu/cpu_gemm.h"

#include <string.h>

/* Products of one shape with rows that are all alike. */
typedef struct height_trials {
    sl_device *device;
    const sli_gemm_job *job;
    sli_pool_task panel;
    int64_t rows, columns;
    float *in_c;  /* the panel in the job's c, where its content is not needed; else NULL */
    void *memory; /* of all below; NULL until the first trial */
    size_t bytes;
    void *a, *b;
    float *c;
    float *expected; /* [draws, columns]: any row of the reference */
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

/* Sums of few terms may have the same bits in another order: where columns are few, they are tried
 * with several draws of a. */
static int64_t count_draws(const height_trials *trials)
{
    enum { ELEMENTS = 256 };
    return sli_divide_up(ELEMENTS, trials->columns);
}

/* Room for every height of a search. */
static sl_status take_memory(height_trials *trials)
{
    const sli_gemm *g = trials->job->gemm;
    int64_t most = trials->rows + SLI_REFERENCE_ROWS - 1, n = trials->columns;
    int64_t of_a = sli_larger((trials->rows - 1) * g->lda, (most - 1) * g->k) + g->k;
    int64_t of_b = g->transpose_b ? (n - 1) * g->ldb + g->k : (g->k - 1) * g->ldb + n;
    int64_t of_c = sli_larger(trials->in_c ? 0 : (trials->rows - 1) * g->ldc, (most - 1) * n) + n;
    size_t element = g->bf16 ? sizeof(uint16_t) : sizeof(float);
    size_t bytes_a = (size_t)sli_aligned_floats(of_a) * element;
    size_t bytes_b = (size_t)sli_aligned_floats(of_b) * element;
    size_t bytes_c = (size_t)sli_aligned_floats(of_c) * sizeof(float);
    trials->bytes = bytes_a + bytes_b + bytes_c + (size_t)(count_draws(trials) * n) * sizeof(float);
    SL_TRY(
        sli_device_allocate(trials->device, SL_MEMORY_WORKSPACE, trials->bytes, &trials->memory));
    trials->a = trials->memory;
    trials->b = (char *)trials->a + bytes_a;
    trials->c = (float *)(void *)((char *)trials->b + bytes_b);
    trials->expected = trials->c + bytes_c / sizeof(float);
    draw_values(1, g->bf16, of_b, trials->b);
    return SL_OK;
}

/* Memory that no plan has, so that none of it stays. */
static void give_back(const height_trials *trials, void *memory, size_t bytes)
{
    sli_device_discard_counted(trials->device, trials->device, SL_MEMORY_WORKSPACE, memory, bytes);
}

/* The product of as many rows, to c. *made: whether there is a way to multiply them. */
static sl_status multiply_alike(const height_trials *trials, int64_t draw, sli_height height,
                                float *c, int64_t ldc, bool *made)
{
    const sli_gemm *g = trials->job->gemm;
    sli_gemm product = {.transpose_b = g->transpose_b,
                        .bf16 = g->bf16,
                        .m = height.rows,
                        .n = trials->columns,
                        .k = g->k,
                        .a = trials->a,
                        .lda = height.is_copied ? g->k : g->lda,
                        .b = trials->b,
                        .ldb = g->ldb,
                        .beta = g->beta,
                        .c = c,
                        .ldc = ldc};
    sli_gemm_job job = {.cpu = trials->job->cpu,
                        .gemm = &product,
                        .widens = trials->job->widens,
                        .copies_b = trials->job->copies_b,
                        .rows = {product.m, product.m, 1},
                        .columns = {product.n, product.n, 1},
                        .use_matmul = trials->job->use_matmul,
                        .is_apart = trials->job->is_apart};
    atomic_init(&job.code, 0);
    sli_gemm_multiply_own_rows(&job);
    sli_gemm_set_floats(&job, 0);
    if (job.use_matmul)
        SL_TRY(sli_gemm_find_primitives(&job));
    *made = job.use_matmul == trials->job->use_matmul;
    if (!*made)
        return SL_OK;
    uint32_t state = (uint32_t)draw + 2;
    draw_rows(state, g->bf16, product.m, g->k, product.lda, trials->a);
    if (g->beta != 0)
        draw_rows(state, false, product.m, product.n, ldc, c);
    size_t bytes = (size_t)job.thread_floats * sizeof(float);
    void *workspace;
    SL_TRY(sli_device_allocate(trials->device, SL_MEMORY_WORKSPACE, bytes, &workspace));
    job.workspace = workspace;
    trials->panel(&job, 0, 0);
    give_back(trials, workspace, bytes);
    sli_sgemm_shape shape = {.m = product.m, .n = product.n, .k = g->k};
    return sli_sgemm_error("gemm", &shape, atomic_load(&job.code));
}

static bool are_alike(int64_t rows, int64_t columns, const float *c, int64_t ldc, const float *row)
{
    for (int64_t i = 0; i < rows; i++)
        if (memcmp(c + i * ldc, row, (size_t)columns * sizeof *c) != 0)
            return false;
    return true;
}

static sl_status try_height(void *context, sli_height height, bool *passes)
{
    height_trials *trials = context;
    bool is_reference = !trials->memory;
    int64_t n = trials->columns, ldc = height.is_copied ? n : trials->job->gemm->ldc;
    if (is_reference)
        SL_TRY(take_memory(trials));
    float *c = !height.is_copied && trials->in_c ? trials->in_c : trials->c;
    *passes = true;
    for (int64_t draw = 0; draw < count_draws(trials) && *passes; draw++) {
        float *expected = trials->expected + draw * n;
        SL_TRY(multiply_alike(trials, draw, height, c, ldc, passes));
        if (*passes && is_reference)
            memcpy(expected, c, (size_t)n * sizeof *c);
        *passes = *passes && are_alike(height.rows, n, c, ldc, expected);
    }
    return SL_OK;
}

/* Of the panels in the last rows, or columns, or not. */
static sl_status find_height(sl_device *device, sli_gemm_job *job, sli_pool_task panel,
                             int last_rows, int last_columns)
{
    const sli_gemm *g = job->gemm;
    sli_range rows = sli_end_range(&job->rows, last_rows);
    sli_range columns = sli_end_range(&job->columns, last_columns);
    height_trials trials = {.device = device,
                            .job = job,
                            .panel = panel,
                            .rows = rows.count,
                            .columns = columns.count,
                            .in_c =
                                g->beta == 0 ? g->c + rows.first * g->ldc + columns.first : NULL};
    sli_height_shape shape = {.n = columns.count,
                              .k = g->k,
                              .lda = g->lda,
                              .ldb = g->ldb,
                              .ldc = g->ldc,
                              .kind = g->transpose_b | g->bf16 << 1 | job->widens << 2 |
                                      job->use_matmul << 3 | (g->beta != 0) << 4 |
                                      job->copies_b << 5};
    sl_status status = sli_heights_find(&job->cpu->heights, &shape, rows.count, try_height, &trials,
                                        &job->heights[last_rows][last_columns]);
    give_back(&trials, trials.memory, trials.bytes);
    return status;
}

sl_status sli_gemm_find_heights(sl_device *device, sli_gemm_job *job, sli_pool_task panel)
{
    bool is_cut = false;
    if (!sli_gemm_is_invariant(job))
        return SL_OK;
    do {
        int64_t most = job->rows.size;
        for (int i = 0; i < 4; i++) {
            SL_TRY(find_height(device, job, panel, i / 2, i % 2));
            if (job->heights[i / 2][i % 2].rows < sli_end_range(&job->rows, i / 2).count)
                most = sli_smaller(most, job->heights[i / 2][i % 2].rows);
        }
        is_cut = most < job->rows.size;
        if (is_cut)
            job->rows = sli_ranges_of(job->gemm->m, most);
    } while (is_cut);
    return SL_OK;
}
