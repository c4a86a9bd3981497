/* bf16 products with a weight as sluice keeps it, row by row, against the form that oneDNN prefers.
 *
 *   bench_packed
 *
 * For each product of a step with a weight: the time of its panels of rows with either form, and of
 * making the form from f32 once a step. The form that sluice keeps serves both products with the
 * weight, forward and the gradient of the input; each has a packed form of its own. Times are of
 * one thread's processor time, the best of a few rounds. */
#include "support.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 5 };

static void check(dnnl_status_t code)
{
    if (code != dnnl_success)
        bench_check(sl_error(SL_ERR_INTERNAL, "oneDNN: status %d", (int)code));
}

/* ---- oneDNN's two interfaces ------------------------------------------------------------ */

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t form;
#else
typedef const dnnl_memory_desc_t *form;
#endif

static dnnl_memory_desc_t describe(dnnl_data_type_t type, int64_t rows, int64_t columns,
                                   dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t out;
    dnnl_dims_t size = {rows, columns};
#if DNNL_VERSION_MAJOR >= 3
    check(dnnl_memory_desc_create_with_tag(&out, 2, size, type, tag));
#else
    check(dnnl_memory_desc_init_by_tag(&out, 2, size, type, tag));
#endif
    return out;
}

/* c [m, n] = a [m, k] b [k, n]; b in the form `tag`. */
static dnnl_primitive_desc_t describe_product(dnnl_engine_t engine, const int64_t size[3],
                                              dnnl_format_tag_t tag)
{
    dnnl_primitive_desc_t out;
    dnnl_memory_desc_t a = describe(dnnl_bf16, size[0], size[2], dnnl_ab);
    dnnl_memory_desc_t b = describe(dnnl_bf16, size[2], size[1], tag);
    dnnl_memory_desc_t c = describe(dnnl_f32, size[0], size[1], dnnl_ab);
#if DNNL_VERSION_MAJOR >= 3
    check(dnnl_matmul_primitive_desc_create(&out, engine, a, b, NULL, c, NULL));
    dnnl_memory_desc_destroy(a);
    dnnl_memory_desc_destroy(b);
    dnnl_memory_desc_destroy(c);
#else
    dnnl_matmul_desc_t product;
    check(dnnl_matmul_desc_init(&product, &a, &b, NULL, &c));
    check(dnnl_primitive_desc_create(&out, &product, NULL, engine, NULL));
#endif
    return out;
}

/* ---- One product ------------------------------------------------------------------------ */

typedef struct product {
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[3]; /* a, b, c */
} product;

static product create_product(dnnl_engine_t engine, const int64_t size[3], dnnl_format_tag_t tag)
{
    static const dnnl_query_t queries[] = {dnnl_query_src_md, dnnl_query_weights_md,
                                           dnnl_query_dst_md};
    product out;
    dnnl_primitive_desc_t description = describe_product(engine, size, tag);
    for (int i = 0; i < 3; i++) {
        form of = dnnl_primitive_desc_query_md(description, queries[i], 0);
        void *data;
        check(dnnl_memory_create(&out.memory[i], of, engine, DNNL_MEMORY_ALLOCATE));
        check(dnnl_memory_get_data_handle(out.memory[i], &data));
        memset(data, 0, dnnl_memory_desc_get_size(of));
    }
    check(dnnl_primitive_create(&out.primitive, description));
    dnnl_primitive_desc_destroy(description);
    return out;
}

static void destroy_product(product *p)
{
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(p->memory[i]);
    dnnl_primitive_destroy(p->primitive);
}

static double thread_seconds(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

static double best_seconds(dnnl_stream_t stream, const_dnnl_primitive_t primitive, int count,
                           const dnnl_exec_arg_t *arguments)
{
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        double start = thread_seconds();
        check(dnnl_primitive_execute(primitive, stream, count, arguments));
        check(dnnl_stream_wait(stream));
        double seconds = thread_seconds() - start;
        best = seconds < best ? seconds : best;
    }
    return best;
}

static double product_seconds(dnnl_stream_t stream, const product *p)
{
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, p->memory[0]},
                                         {DNNL_ARG_WEIGHTS, p->memory[1]},
                                         {DNNL_ARG_DST, p->memory[2]}};
    return best_seconds(stream, p->primitive, 3, arguments);
}

static dnnl_memory_t allocate_masters(dnnl_engine_t engine, const int64_t size[3],
                                      dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t masters = describe(dnnl_f32, size[2], size[1], tag);
    dnnl_memory_t out;
#if DNNL_VERSION_MAJOR >= 3
    check(dnnl_memory_create(&out, masters, engine, DNNL_MEMORY_ALLOCATE));
    dnnl_memory_desc_destroy(masters);
#else
    check(dnnl_memory_create(&out, &masters, engine, DNNL_MEMORY_ALLOCATE));
#endif
    return out;
}

/* Of copying the f32 weight, which lies in the form `tag`, to the bf16 one of the product. */
static double copying_seconds(dnnl_engine_t engine, dnnl_stream_t stream, const int64_t size[3],
                              dnnl_format_tag_t tag, const product *p)
{
    dnnl_memory_t from = allocate_masters(engine, size, tag);
    dnnl_primitive_desc_t description;
    dnnl_primitive_t primitive;
    void *data;
    check(dnnl_memory_get_data_handle(from, &data));
    memset(data, 0, (size_t)(size[1] * size[2]) * sizeof(float));
    form a, b;
    check(dnnl_memory_get_memory_desc(from, &a));
    check(dnnl_memory_get_memory_desc(p->memory[1], &b));
    check(dnnl_reorder_primitive_desc_create(&description, a, engine, b, engine, NULL));
    check(dnnl_primitive_create(&primitive, description));
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, p->memory[1]}};
    double seconds = best_seconds(stream, primitive, 2, arguments);
    dnnl_primitive_destroy(primitive);
    dnnl_primitive_desc_destroy(description);
    dnnl_memory_destroy(from);
    return seconds;
}

/* ---- The products of a step -------------------------------------------------------------- */

/* `panels` of m rows each share the weight [k, n], which lies in the form `tag`. */
static void report(dnnl_engine_t engine, dnnl_stream_t stream, const char *name, int panels,
                   const int64_t size[3], dnnl_format_tag_t tag)
{
    product plain = create_product(engine, size, tag);
    product packed = create_product(engine, size, dnnl_format_tag_any);
    double before = panels * product_seconds(stream, &plain);
    double after = panels * product_seconds(stream, &packed);
    double copying = copying_seconds(engine, stream, size, tag, &plain);
    double packing = copying_seconds(engine, stream, size, tag, &packed);
    double after_all = after + packing, before_all = before + copying / 2; /* a copy serves two */
    printf("| %s | %.1f ms | %.1f ms | %.1f ms | %.1f ms | %.1f%% |\n", name, 1e3 * before,
           1e3 * copying, 1e3 * after, 1e3 * packing, 100 * (after_all / before_all - 1));
    fflush(stdout);
    destroy_product(&plain);
    destroy_product(&packed);
}

static void report_width(dnnl_engine_t engine, dnnl_stream_t stream, int rows, int width,
                         int hidden, int tokens)
{
    int panels = rows > 352 ? 2 : 1;
    const struct {
        const char *name;
        int out, in;
    } weights[] = {{"in_proj", 3 * width, width},
                   {"out_proj", width, width},
                   {"linear1", hidden, width},
                   {"decoder", tokens, width}};
    for (int i = 0; i < 4; i++) {
        const int64_t forward[] = {rows / panels, weights[i].out, weights[i].in};
        const int64_t backward[] = {rows / panels, weights[i].in, weights[i].out};
        char name[64];
        snprintf(name, sizeof name, "%d | %s, forward", width, weights[i].name);
        report(engine, stream, name, panels, forward, dnnl_ba);
        snprintf(name, sizeof name, "%d | %s, gradient of the input", width, weights[i].name);
        report(engine, stream, name, panels, backward, dnnl_ab);
    }
}

int main(void)
{
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    omp_set_num_threads(1);
    check(dnnl_engine_create(&engine, dnnl_cpu, 0));
    check(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    bench_heading("| emsize | product | with the copy | the copy | packed | packing | longer by |");
    report_width(engine, stream, 700, 200, 200, 28782);
    report_width(engine, stream, 256, 768, 3072, 50257);
    report_width(engine, stream, 700, 1024, 1024, 28782);
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    return 0;
}
