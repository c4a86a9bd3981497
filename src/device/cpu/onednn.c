#include "device/cpu/onednn.h"

#include <inttypes.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- dnnl_sgemm ------------------------------------------------------------------------- */

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

void sli_sgemm_load(void)
{
    enum { SIZE = 8 }; /* a vector would be multiplied by other kernels */
    float ones[SIZE * SIZE] = {1}, product[SIZE * SIZE];
    sli_sgemm_shape shape = {
        .m = SIZE, .n = SIZE, .k = SIZE, .lda = SIZE, .ldb = SIZE, .ldc = SIZE};
    for (int transpose = 0; transpose < 2; transpose++) {
        shape.transpose_a = transpose;
        (void)sli_sgemm(&shape, ones, ones, 0, product); /* a product in earnest has the error */
    }
}

static bool has_isa(dnnl_cpu_isa_t isa)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)isa) == (unsigned)isa;
}

static bool has_avx2_alone(void)
{
    return has_isa(dnnl_cpu_isa_avx2) && !has_isa(dnnl_cpu_isa_avx512_core);
}

int64_t sli_sgemm_step(bool transpose_a)
{
    if (!has_avx2_alone())
        return 384;
    return transpose_a ? 192 : 256;
}

bool sli_sgemm_is_slowed_by(int64_t ld, bool transpose_a, int64_t m)
{
    if (has_avx2_alone())
        return ld % 512 == 0;
    if (!has_isa(dnnl_cpu_isa_avx512_core))
        return false;
    if (transpose_a)
        return ld % 8192 == 0;
    return ld % 2048 == 0 || (ld % 1024 == 0 && m > 176);
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

/* ---- The matmul primitive --------------------------------------------------------------- */

enum { PRIMITIVES = 128, MEMORIES = 4 };

bool sli_matmul_has_amx(void)
{
    return has_isa(dnnl_cpu_isa_avx512_core_amx);
}

/* What one thread passes to a primitive: its memories are pointed at new data at each run. */
typedef struct thread_call {
    dnnl_memory_t memory[MEMORIES]; /* a, b, c, scratch */
} thread_call;

struct sli_matmul_primitive {
    sli_matmul_shape shape;
    dnnl_primitive_t primitive; /* NULL: not better than dnnl_sgemm */
    int64_t scratch_floats;
    thread_call *calls; /* [threads] */
    uint64_t last_use;  /* by matmul->clock; 0: a free entry */
};

struct sli_matmul {
    pthread_mutex_t lock; /* guards the primitives, and is held while one is in use */
    dnnl_engine_t engine;
    int threads;
    dnnl_stream_t *streams; /* [threads] a stream belongs to one thread at a time */
    uint64_t clock;         /* counts uses */
    sli_matmul_primitive primitives[PRIMITIVES];
};

/* ---- Its building ----------------------------------------------------------------------- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t matrix;

static dnnl_status_t describe_matrix(matrix *out, bool bf16, int64_t rows, int64_t columns,
                                     int64_t row, int64_t step)
{
    dnnl_dims_t size = {rows, columns}, strides = {row, step};
    return dnnl_memory_desc_create_with_strides(out, 2, size, bf16 ? dnnl_bf16 : dnnl_f32, strides);
}

static dnnl_status_t describe_primitive(dnnl_engine_t engine, matrix md[3],
                                        const_dnnl_primitive_attr_t attributes,
                                        dnnl_primitive_desc_t *out)
{
    return dnnl_matmul_primitive_desc_create(out, engine, md[0], md[1], NULL, md[2], attributes);
}

static void clear_matrix(matrix *of)
{
    if (*of)
        dnnl_memory_desc_destroy(*of);
}

static dnnl_status_t append_sum(dnnl_post_ops_t to)
{
    return dnnl_post_ops_append_sum(to, 1.0f, 0, dnnl_data_type_undef);
}
#else
typedef dnnl_memory_desc_t matrix;

static dnnl_status_t describe_matrix(matrix *out, bool bf16, int64_t rows, int64_t columns,
                                     int64_t row, int64_t step)
{
    dnnl_dims_t size = {rows, columns}, strides = {row, step};
    return dnnl_memory_desc_init_by_strides(out, 2, size, bf16 ? dnnl_bf16 : dnnl_f32, strides);
}

static dnnl_status_t describe_primitive(dnnl_engine_t engine, matrix md[3],
                                        const_dnnl_primitive_attr_t attributes,
                                        dnnl_primitive_desc_t *out)
{
    dnnl_matmul_desc_t product;
    dnnl_status_t code = dnnl_matmul_desc_init(&product, &md[0], &md[1], NULL, &md[2]);
    if (code == dnnl_success)
        code = dnnl_primitive_desc_create(out, &product, attributes, engine, NULL);
    return code;
}

static void clear_matrix(matrix *of)
{
    (void)of;
}

static dnnl_status_t append_sum(dnnl_post_ops_t to)
{
    return dnnl_post_ops_append_sum(to, 1.0f);
}
#endif

static dnnl_status_t describe_product(dnnl_engine_t engine, const sli_matmul_shape *s,
                                      const_dnnl_primitive_attr_t attributes,
                                      dnnl_primitive_desc_t *out)
{
    matrix md[3];
    memset(md, 0, sizeof md);
    dnnl_status_t code = describe_matrix(&md[0], s->bf16, s->m, s->k, s->a_row, s->a_step);
    if (code == dnnl_success)
        code = describe_matrix(&md[1], s->bf16, s->k, s->n, s->b_row, s->b_step);
    if (code == dnnl_success)
        code = describe_matrix(&md[2], false, s->m, s->n, s->ldc, 1);
    if (code == dnnl_success)
        code = describe_primitive(engine, md, attributes, out);
    for (int i = 0; i < 3; i++)
        clear_matrix(&md[i]);
    return code;
}

/* oneDNN's implementations bear names. In f32 this family is the one that is worth it; of bf16, all
 * but the reference. */
static bool is_fast(const_dnnl_primitive_desc_t product, bool bf16)
{
    const char *name = NULL;
    dnnl_status_t code = dnnl_primitive_desc_query(product, dnnl_query_impl_info_str, 0, &name);
    return code == dnnl_success && name &&
           (strncmp(name, "brg", 3) == 0 || (bf16 && strncmp(name, "gemm:jit", 8) == 0));
}

/* The library's own scratch memory belongs to the building thread, so the caller gives it. */
static dnnl_status_t make_attributes(bool adds, dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t after = NULL;
    dnnl_status_t code = dnnl_primitive_attr_create(out);
    if (code == dnnl_success)
        code = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (code != dnnl_success || !adds)
        return code;
    code = dnnl_post_ops_create(&after);
    if (code == dnnl_success)
        code = append_sum(after);
    if (code == dnnl_success)
        code = dnnl_primitive_attr_set_post_ops(*out, after);
    dnnl_post_ops_destroy(after);
    return code;
}

static dnnl_status_t make_calls(sli_matmul *matmul, sli_matmul_primitive *entry,
                                const_dnnl_primitive_desc_t product)
{
    static const dnnl_query_t queries[MEMORIES] = {dnnl_query_src_md, dnnl_query_weights_md,
                                                   dnnl_query_dst_md, dnnl_query_scratchpad_md};
    entry->calls = calloc((size_t)matmul->threads, sizeof *entry->calls);
    if (!entry->calls)
        return dnnl_out_of_memory;
    for (int i = 0; i < matmul->threads * MEMORIES; i++) {
        dnnl_status_t code =
            dnnl_memory_create(&entry->calls[i / MEMORIES].memory[i % MEMORIES],
                               dnnl_primitive_desc_query_md(product, queries[i % MEMORIES], 0),
                               matmul->engine, DNNL_MEMORY_NONE);
        if (code != dnnl_success)
            return code;
    }
    return dnnl_success;
}

static void clear_primitive(const sli_matmul *matmul, sli_matmul_primitive *entry)
{
    for (int i = 0; entry->calls && i < matmul->threads * MEMORIES; i++)
        dnnl_memory_destroy(entry->calls[i / MEMORIES].memory[i % MEMORIES]);
    free(entry->calls);
    dnnl_primitive_destroy(entry->primitive);
    memset(entry, 0, sizeof *entry);
}

/* Leaves entry->primitive NULL where there is no kernel worth it. */
static dnnl_status_t build_primitive(sli_matmul *matmul, sli_matmul_primitive *entry)
{
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t product = NULL;
    dnnl_status_t code = make_attributes(entry->shape.adds, &attributes);
    if (code == dnnl_success)
        code = describe_product(matmul->engine, &entry->shape, attributes, &product);
    if (code == dnnl_unimplemented && entry->shape.bf16)
        code = dnnl_success;
    else if (code == dnnl_success && is_fast(product, entry->shape.bf16)) {
        size_t bytes = dnnl_memory_desc_get_size(
            dnnl_primitive_desc_query_md(product, dnnl_query_scratchpad_md, 0));
        entry->scratch_floats = (int64_t)((bytes + sizeof(float) - 1) / sizeof(float));
        code = dnnl_primitive_create(&entry->primitive, product);
        if (code == dnnl_success)
            code = make_calls(matmul, entry, product);
    }
    dnnl_primitive_desc_destroy(product);
    dnnl_primitive_attr_destroy(attributes);
    return code;
}

/* The entry of a shape, NULL if there is none. */
static sli_matmul_primitive *find_primitive(sli_matmul *matmul, const sli_matmul_shape *shape)
{
    for (int i = 0; i < PRIMITIVES; i++) {
        sli_matmul_primitive *known = &matmul->primitives[i];
        if (known->last_use && memcmp(&known->shape, shape, sizeof *shape) == 0)
            return known;
    }
    return NULL;
}

/* A free entry, else the least recently used one. */
static sli_matmul_primitive *choose_entry(sli_matmul *matmul)
{
    sli_matmul_primitive *oldest = &matmul->primitives[0];
    for (int i = 1; i < PRIMITIVES; i++)
        if (matmul->primitives[i].last_use < oldest->last_use)
            oldest = &matmul->primitives[i];
    return oldest;
}

static sl_status add_primitive(sli_matmul *matmul, const sli_matmul_shape *shape,
                               sli_matmul_primitive **out)
{
    sli_matmul_primitive *entry = choose_entry(matmul);
    clear_primitive(matmul, entry);
    entry->shape = *shape;
    int threads = omp_get_max_threads();
    omp_set_num_threads(1); /* a primitive is built for a number of threads */
    dnnl_status_t code = build_primitive(matmul, entry);
    omp_set_num_threads(threads);
    if (code != dnnl_success) {
        clear_primitive(matmul, entry);
        return sl_error(code == dnnl_out_of_memory ? SL_ERR_MEMORY : SL_ERR_INTERNAL,
                        "gemm: oneDNN could not prepare a product of %lld x %lld by %lld x %lld "
                        "(code %d)",
                        (long long)shape->m, (long long)shape->k, (long long)shape->k,
                        (long long)shape->n, (int)code);
    }
    *out = entry;
    return SL_OK;
}

sl_status sli_matmul_find(sli_matmul *matmul, const sli_matmul_shape *shape,
                          const sli_matmul_primitive **out)
{
    *out = NULL;
    sli_matmul_primitive *entry = find_primitive(matmul, shape);
    if (!entry)
        SL_TRY(add_primitive(matmul, shape, &entry));
    entry->last_use = ++matmul->clock;
    *out = entry->primitive ? entry : NULL;
    return SL_OK;
}

int64_t sli_matmul_scratch_floats(const sli_matmul_primitive *entry)
{
    return entry->scratch_floats;
}

/* ---- Running it ------------------------------------------------------------------------- */

int sli_matmul_run(sli_matmul *matmul, const sli_matmul_primitive *entry, int thread, const void *a,
                   const void *b, float *c, float *scratch)
{
    static const int roles[MEMORIES] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                        DNNL_ARG_SCRATCHPAD};
    const void *data[MEMORIES] = {a, b, c, scratch};
    const thread_call *call = &entry->calls[thread];
    dnnl_exec_arg_t arguments[MEMORIES];
    for (int i = 0; i < MEMORIES; i++) {
        dnnl_status_t code = dnnl_memory_set_data_handle(call->memory[i], (void *)data[i]);
        if (code != dnnl_success)
            return (int)code;
        arguments[i] = (dnnl_exec_arg_t){roles[i], call->memory[i]};
    }
    int threads = omp_get_max_threads();
    if (threads != 1)
        omp_set_num_threads(1);
    dnnl_status_t code =
        dnnl_primitive_execute(entry->primitive, matmul->streams[thread], MEMORIES, arguments);
    if (threads != 1)
        omp_set_num_threads(threads);
    return (int)code;
}

/* ---- Creation --------------------------------------------------------------------------- */

sl_status sli_matmul_create(int threads, sli_matmul **out)
{
    *out = NULL;
    sli_matmul *matmul = calloc(1, sizeof *matmul);
    if (!matmul)
        return sli_no_memory("sli_matmul_create", "the products");
    pthread_mutex_init(&matmul->lock, NULL);
    matmul->threads = threads;
    matmul->streams = calloc((size_t)threads, sizeof *matmul->streams);
    dnnl_status_t code = matmul->streams ? dnnl_success : dnnl_out_of_memory;
    if (code == dnnl_success)
        code = dnnl_engine_create(&matmul->engine, dnnl_cpu, 0);
    for (int i = 0; i < threads && code == dnnl_success; i++)
        code = dnnl_stream_create(&matmul->streams[i], matmul->engine, dnnl_stream_default_flags);
    if (code != dnnl_success) {
        sli_matmul_destroy(&matmul);
        return sl_error(SL_ERR_INTERNAL, "sli_matmul_create: oneDNN does not start (code %d)",
                        (int)code);
    }
    *out = matmul;
    return SL_OK;
}

void sli_matmul_destroy(sli_matmul **matmul)
{
    if (!*matmul)
        return;
    sli_matmul *dead = *matmul;
    *matmul = NULL;
    for (int i = 0; i < PRIMITIVES; i++)
        clear_primitive(dead, &dead->primitives[i]);
    for (int i = 0; dead->streams && i < dead->threads; i++)
        dnnl_stream_destroy(dead->streams[i]);
    free(dead->streams);
    dnnl_engine_destroy(dead->engine);
    pthread_mutex_destroy(&dead->lock);
    free(dead);
}

void sli_matmul_lock(sli_matmul *matmul)
{
    pthread_mutex_lock(&matmul->lock);
}

void sli_matmul_unlock(sli_matmul *matmul)
{
    pthread_mutex_unlock(&matmul->lock);
}
