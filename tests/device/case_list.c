/* The list of cases: shapes at the ends of rows, lanes, ranges and panels, then random ones; and
 * large ones, with a name, for timing. */
#include "device/cases.h"

#include <stdio.h>
#include <stdlib.h>

#define COUNT_OF(list) ((int64_t)(sizeof(list) / sizeof *(list)))

enum { WIDTH = 1024, ROWS = 20000, ELEMENTS = ROWS * WIDTH, VOCABULARY = 28782, TIME = 35 };

static const int64_t counts[] = {0, 1, 3, 17, 200, 257, 1024, 16384, 16385, 50001};
static const int64_t bytes[] = {0, 1, 63, 4096, (1 << 18) + 1, (1 << 20) + 7};
static const int64_t sizes[] = {1, 2, 3, 17, 35, 64, 100, 200, 257};
static const int64_t row_counts[] = {0, 1, 2, 7, 35, 100};
static const int64_t widths[] = {3, 4, 17, 35, 200, 257, 1024, 1500};
static const int64_t classes[] = {1, 3, 17, 200, 513, 1500, 5003};
static const int64_t positions[] = {1, 2, 3, 17, 25, 35, 64, 65};
static const int64_t head_widths[] = {1, 3, 8, 17, 64, 100};

/* clang-format off */
/* So often, each time with other random flags and, where there is dropout, another rate. */
static const struct {
    int times;
    case_kind kind;
    int64_t size[4];
} shapes[] = {
    {10, CASE_GEMM, {17, 35, 0}}, {1, CASE_GEMM, {0, 35, 8}}, {1, CASE_GEMM, {17, 0, 8}},
    {2, CASE_EPILOGUE, {0, 35}}, {4, CASE_EPILOGUE, {700, 257}}, {2, CASE_EPILOGUE, {30, 5003}},
    {4, CASE_EPILOGUE_BACKWARD, {0, 35}}, {4, CASE_EPILOGUE_BACKWARD, {700, 257}},
    {4, CASE_EPILOGUE_BACKWARD, {30, 5003}}, {4, CASE_EPILOGUE_BACKWARD, {5, 33001}},
    {2, CASE_EMBEDDING_BACKWARD, {2100, 12}}, {1, CASE_EMBEDDING_BACKWARD, {513, 130}},
    {4, CASE_ADD_DROPOUT, {300, 257}}, {4, CASE_ADD_NORM, {300, 257}}, {2, CASE_ADD_NORM, {3, 9001}},
    {4, CASE_ADD_NORM_BACKWARD, {300, 257}}, {1, CASE_ADD_NORM_BACKWARD, {3, 70000}},
    {4, CASE_SWIGLU, {300, 257}}, {2, CASE_SWIGLU, {3, 9001}}, {3, CASE_SWIGLU_BACKWARD, {300, 257}},
    {1, CASE_SWIGLU_BACKWARD, {5, 33001}}, {1, CASE_SWIGLU, {0, 35}},
    {4, CASE_ROTARY, {300, 3, 64}}, {2, CASE_ROTARY, {7, 1, 256}}, {2, CASE_ROTARY, {2000, 5, 6}},
    {1, CASE_ROTARY, {0, 2, 8}}, {1, CASE_ROTARY, {5, 0, 8}}, {1, CASE_ROTARY, {3, 11, 2}},
    {3, CASE_CROSS_ENTROPY, {17, 70001}}, {2, CASE_ATTENTION, {1, 200, 2, 16}},
    {1, CASE_ATTENTION, {2, 129, 1, 20}}, {1, CASE_ATTENTION, {1, 1100, 1, 4}},
    {1, CASE_ATTENTION, {0, 35, 2, 8}}, {2, CASE_ATTENTION_BACKWARD, {1, 200, 2, 16}},
    {2, CASE_ATTENTION_BACKWARD, {1, 530, 2, 16}},
    {1, CASE_ATTENTION_BACKWARD, {2, 129, 1, 20}}, {1, CASE_ATTENTION_BACKWARD, {1, 1100, 1, 4}},
    {1, CASE_ATTENTION_BACKWARD, {0, 35, 2, 8}},
};
/* clang-format on */

/* Products whose panels differ in size, in every layout. */
static const int64_t panels[][4] = {{700, 257, 17}, {361, 1030, 3}, {88, 5000, 8},
                                    {88, 5000, 16}, {3000, 90, 5},  {533, 203, 40}};

/* Bound by memory: arrays that no cache holds. */
static const case_spec timings[] = {
    {CASE_COPY, {4 * ELEMENTS}, 0, 0, "copy"},
    {CASE_ZERO, {4 * ELEMENTS}, 0, 0, "zero"},
    {CASE_ADD, {ELEMENTS}, 0, 0, "add"},
    {CASE_SGD, {ELEMENTS}, 0, 0, "sgd"},
    {CASE_SGD, {ELEMENTS}, WITH_MOMENTUM, 0, "sgd momentum"},
    {CASE_ADAMW, {ELEMENTS}, 0, 0, "adamw"},
    {CASE_ADAMW_BF16, {ELEMENTS}, 0, 0, "adamw bf16"},
    {CASE_NORM_TERMS, {ELEMENTS}, 0, 0, "norm l2"},
    {CASE_NORM_TERMS, {ELEMENTS}, WITH_INF, 0, "norm inf"},
    {CASE_EPILOGUE, {ROWS, WIDTH}, WITH_RELU, 0, "relu"},
    {CASE_EPILOGUE, {ROWS, WIDTH}, WITH_GELU, 0, "gelu"},
    {CASE_EPILOGUE, {ROWS, WIDTH}, WITH_GELU | WITH_TANH, 0, "gelu tanh"},
    {CASE_EPILOGUE_BACKWARD, {ROWS, WIDTH}, WITH_BIAS, 0, "bias grad"},
    {CASE_EPILOGUE_BACKWARD, {ROWS, WIDTH}, WITH_BIAS | WITH_RELU, 0.2f, "relu+dropout backward"},
    {CASE_EPILOGUE_BACKWARD, {ROWS, WIDTH}, WITH_BIAS | WITH_GELU, 0, "gelu backward"},
    {CASE_EPILOGUE_BACKWARD,
     {ROWS, WIDTH},
     WITH_BIAS | WITH_GELU | WITH_TANH,
     0,
     "gelu tanh backward"},
    {CASE_EMBEDDING, {ROWS, WIDTH}, WITH_POSITIONS, 0, "embedding"},
    {CASE_EMBEDDING_BACKWARD, {ROWS, WIDTH}, 0, 0, "embedding backward"},
    {CASE_ADD_NORM, {ROWS, WIDTH}, WITH_RESIDUAL | WITH_SAVED | WITH_BIAS, 0, "add+norm"},
    {CASE_ADD_NORM, {ROWS, WIDTH}, WITH_RESIDUAL | WITH_SAVED, 0, "add+rms norm"},
    {CASE_ROTARY, {ROWS, WIDTH / 64, 64}, 0, 0, "rotary"},
    {CASE_SWIGLU, {ROWS, WIDTH}, 0, 0, "swiglu"},
    {CASE_SWIGLU_BACKWARD, {ROWS, WIDTH}, 0, 0, "swiglu backward"},
    {CASE_ADD_NORM_BACKWARD, {ROWS, WIDTH}, WITH_BIAS, 0, "add+norm backward"},
    {CASE_ADD_NORM_BACKWARD, {ROWS, WIDTH}, 0, 0, "add+rms norm backward"},
    {CASE_CROSS_ENTROPY, {700, VOCABULARY}, 0, 0, "cross entropy"},
    {CASE_CROSS_ENTROPY, {700, VOCABULARY}, WITH_GRADIENT, 0, "cross entropy, gradient"},
    {CASE_CROSS_ENTROPY, {700, VOCABULARY}, WITH_GRADIENT | WITH_BIAS, 0, "cross entropy, bias"},
    {CASE_INITIALIZE, {ELEMENTS}, 0, 0, "initialize"},
    {CASE_EPILOGUE_BACKWARD, {ROWS, WIDTH}, WITH_BIAS, 0.2f, "dropout backward"},
    {CASE_ADD_DROPOUT, {ROWS, WIDTH}, WITH_RESIDUAL, 0.2f, "dropout+add"},
    {CASE_ADD_NORM,
     {ROWS, WIDTH},
     WITH_RESIDUAL | WITH_SAVED | WITH_BIAS,
     0.2f,
     "dropout+add+norm"},
    {CASE_ADD_NORM_BACKWARD,
     {ROWS, WIDTH},
     WITH_GRADIENT | WITH_BIAS,
     0.2f,
     "dropout+add+norm backward"},
};

typedef struct list {
    case_spec *specs;
    size_t count, room;
    random_source random;
} list;

static case_spec *add(list *cases, case_kind kind, const int64_t size[4])
{
    if (cases->count == cases->room) {
        cases->room = 2 * cases->room + 64;
        cases->specs = realloc(cases->specs, cases->room * sizeof *cases->specs);
        if (!cases->specs)
            abort();
    }
    case_spec *spec = &cases->specs[cases->count++];
    *spec = (case_spec){.kind = kind, .size = {size[0], size[1], size[2], size[3]}};
    return spec;
}

static case_spec *add_random(list *cases, case_kind kind, const int64_t size[4])
{
    static const float rates[] = {0, 0, 0.1f, 0.2f, 0.5f, 0.9f};
    case_spec *spec = add(cases, kind, size);
    spec->flags = random_bits(&cases->random) & case_operations[kind].flags;
    if (kind >= CASE_GEMM && kind != CASE_CROSS_ENTROPY)
        spec->p = rates[random_below(&cases->random, COUNT_OF(rates))];
    return spec;
}

static void add_flat(list *cases)
{
    for (int i = 0; i < COUNT_OF(bytes); i++)
        for (case_kind kind = CASE_COPY; kind <= CASE_ZERO; kind++)
            add(cases, kind, (int64_t[4]){bytes[i]});
    for (int i = 0; i < COUNT_OF(counts); i++) {
        const int64_t size[4] = {counts[i]};
        add(cases, CASE_ADD, size);
        for (int k = 0; k < 4; k++) {
            add_random(cases, CASE_SGD, size);
            add_random(cases, k % 2 ? CASE_ADAMW_BF16 : CASE_ADAMW, size);
        }
        for (case_kind kind = CASE_NORM_TERMS; kind <= CASE_INITIALIZE; kind++) {
            add(cases, kind, size);
            add(cases, kind, size)->flags = WITH_L1;
            add(cases, kind, size)->flags = WITH_INF;
        }
    }
}

static void add_panels(list *cases)
{
    static const unsigned layout[] = {WITH_TRANSPOSED_A, WITH_TRANSPOSED_B, WITH_LONG_ROWS,
                                      WITH_BETA};
    for (int i = 0; i < COUNT_OF(panels); i++)
        for (int bits = 0; bits < 16; bits++) {
            case_spec *spec = add_random(cases, CASE_GEMM, panels[i]);
            for (int bit = 0; bit < 4; bit++)
                spec->flags = (spec->flags & ~layout[bit]) | (bits >> bit & 1 ? layout[bit] : 0);
        }
}

static int64_t any(list *cases, const int64_t *of, int64_t count)
{
    return of[random_below(&cases->random, count)];
}
#define ANY(list) any(cases, list, COUNT_OF(list))

/* Rows that end at, before and behind what masks are drawn for at once; rates at the ends. */
static void add_masks(list *cases)
{
    static const int64_t ends[] = {1, 3, 4, 35, 64, 200, 257, 1023, 1024, 1025, 4100};
    static const float rates[] = {0.1f, 0.2f, 0.5f, 0.999f, 0x1p-24f, 1};
    for (int i = 0; i < COUNT_OF(ends) * 2; i++)
        add(cases, CASE_ADD_DROPOUT, (int64_t[4]){ends[i / 2] > 300 ? 25 : 150, ends[i / 2]})->p =
            rates[i % COUNT_OF(rates)];
}

static void add_heads(list *cases, const int64_t size[4], unsigned precision)
{
    for (case_kind kind = CASE_ATTENTION; kind <= CASE_ATTENTION_BACKWARD; kind++) {
        case_spec *spec = add_random(cases, kind, size);
        spec->flags = (spec->flags & ~(WITH_BF16 | WITH_TF32)) | precision;
    }
}

/* Heads of more columns than three of a kernel's tiles have, in each precision; and in bf16 of more
 * rows than a GPU's block, in each width of its kernels. */
static void add_wide_heads(list *cases)
{
    static const int64_t wide[][4] = {{1, 70, 2, 200}, {1, 67, 1, 256}};
    static const int64_t high[][4] = {{1, 150, 1, 72}, {1, 140, 2, 136}};
    static const unsigned precisions[] = {0, WITH_BF16, WITH_TF32};
    for (int i = 0; i < COUNT_OF(wide); i++)
        for (int p = 0; p < COUNT_OF(precisions); p++)
            add_heads(cases, wide[i], precisions[p]);
    for (int i = 0; i < COUNT_OF(high); i++)
        add_heads(cases, high[i], WITH_BF16);
}

/* Heads that share keys: each kind of block that a device has, with and without dropout. */
static void add_shared_keys(list *cases)
{
    static const int64_t shared[][4] = {{2, 20, 4, 16}, {1, 140, 4, 24}, {2, 70, 6, 10},
                                        {1, 66, 3, 8},  {2, 33, 4, 72},  {1, 65, 2, 136}};
    static const unsigned precisions[] = {0, WITH_BF16, WITH_TF32};
    for (int i = 0; i < COUNT_OF(shared); i++)
        for (int p = 0; p < COUNT_OF(precisions); p++)
            for (case_kind kind = CASE_ATTENTION; kind <= CASE_ATTENTION_BACKWARD; kind++) {
                case_spec *spec = add(cases, kind, shared[i]);
                spec->flags =
                    WITH_SHARED_KEYS | WITH_SAVED | precisions[p] | (i % 2 ? 0 : WITH_CAUSAL_MASK);
                spec->p = p == 2 ? 0 : 0.2f;
            }
}

/* A bf16 product that a CUDA device makes in parts, as no size is a multiple of 8. */
static void add_product_in_parts(list *cases)
{
    add(cases, CASE_GEMM, (int64_t[4]){1030, 1027, 1041})->flags =
        WITH_BF16 | WITH_BIAS | WITH_TRANSPOSED_B;
}

static void add_random_shapes(list *cases)
{
    add_random(cases, CASE_GEMM, (int64_t[4]){ANY(sizes), ANY(sizes), ANY(sizes)});
    for (case_kind kind = CASE_EPILOGUE; kind <= CASE_EPILOGUE_BACKWARD; kind++)
        add_random(cases, kind, (int64_t[4]){ANY(sizes), ANY(sizes)});
    for (case_kind kind = CASE_EMBEDDING; kind <= CASE_ADD_NORM_BACKWARD; kind++)
        add_random(cases, kind, (int64_t[4]){ANY(row_counts), ANY(widths)});
    add_random(cases, CASE_CROSS_ENTROPY, (int64_t[4]){ANY(row_counts), ANY(classes)});
    for (case_kind kind = CASE_ATTENTION; kind <= CASE_ATTENTION_BACKWARD; kind++)
        add_random(cases, kind,
                   (int64_t[4]){1 + random_below(&cases->random, 3), ANY(positions),
                                1 + random_below(&cases->random, 3), ANY(head_widths)});
}

/* The products of a layer and of the decoder: forward, gradient of the input, of the weight. */
static void add_products(list *cases, int rows, int width)
{
    const struct {
        const char *name;
        int out;
    } layers[] = {{"qkv", 3 * width}, {"linear", width}, {"decoder", VOCABULARY}};
    for (int i = 0; i < COUNT_OF(layers); i++) {
        case_spec specs[] = {
            {CASE_GEMM, {rows, layers[i].out, width}, WITH_TRANSPOSED_B | WITH_BIAS, 0, ""},
            {CASE_GEMM, {rows, width, layers[i].out}, 0, 0, " dx"},
            {CASE_GEMM, {layers[i].out, width, rows}, WITH_TRANSPOSED_A, 0, " dw"},
        };
        for (int k = 0; k < 3; k++) {
            case_spec *spec = add(cases, CASE_GEMM, specs[k].size);
            spec->flags = specs[k].flags;
            snprintf(spec->name, sizeof spec->name, "%s%s %d x %d", layers[i].name, specs[k].name,
                     rows, width);
        }
    }
    int heads = width % 64 ? 2 : width / 64;
    for (case_kind kind = CASE_ATTENTION; kind <= CASE_ATTENTION_BACKWARD; kind++) {
        int64_t size[] = {rows / TIME, TIME, heads, width / heads};
        case_spec *spec = add(cases, kind, size);
        spec->flags = WITH_CAUSAL_MASK | WITH_SAVED;
        spec->p = 0.2f;
        snprintf(spec->name, sizeof spec->name, "%s %d x %d",
                 kind == CASE_ATTENTION ? "attention" : "attention dx", rows, width);
    }
}

case_spec *case_list(uint64_t seed, size_t *count)
{
    list made = {.random = {seed}};
    add_flat(&made);
    add_panels(&made);
    add_masks(&made);
    add_wide_heads(&made);
    add_shared_keys(&made);
    add_product_in_parts(&made);
    for (int i = 0; i < COUNT_OF(shapes); i++)
        for (int k = 0; k < shapes[i].times; k++)
            add_random(&made, shapes[i].kind, shapes[i].size);
    for (int i = 0; i < 40; i++)
        add_random_shapes(&made);
    for (int i = 0; i < COUNT_OF(timings); i++)
        *add(&made, timings[i].kind, timings[i].size) = timings[i];
    for (int rows = 0; rows < 3; rows++)
        for (int width = 0; width < 2; width++)
            add_products(&made, (int[]){700, 105, 88}[rows], (int[]){1024, 200}[width]);
    *count = made.count;
    return made.specs;
}
