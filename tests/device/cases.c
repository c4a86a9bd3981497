/* A case is built by its operation's row; a backward's from its forward's, so that what was saved
 * is what backward expects. */
#include "device/cases.h"

#include "core/bf16.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Random numbers --------------------------------------------------------------------- */

uint32_t random_bits(random_source *source)
{
    source->state = source->state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = source->state;
    return (uint32_t)((x ^ (x >> 22)) >> (22 + (x >> 61)));
}

int64_t random_below(random_source *source, int64_t below)
{
    return (int64_t)(random_bits(source) % (uint32_t)below);
}

float random_float(random_source *source)
{
    return (float)random_bits(source) * 0x1p-31f - 1.0f;
}

size_t case_type_bytes(case_type type)
{
    static const size_t bytes[] = {4, 4, 8, 1, 2};
    return bytes[type];
}

double case_element(case_type type, const void *values, int64_t index)
{
    return type == CASE_F32    ? (double)((const float *)values)[index]
           : type == CASE_F64  ? ((const double *)values)[index]
           : type == CASE_I32  ? ((const int32_t *)values)[index]
           : type == CASE_BF16 ? (double)sli_f32_from_bf16(((const uint16_t *)values)[index])
                               : ((const unsigned char *)values)[index];
}

/* ---- Building --------------------------------------------------------------------------- */

static void *argument(op_case *c, size_t offset)
{
    return (char *)&c->arguments + offset;
}

static int64_t count_of(const op_case *c, int array, case_dims dims)
{
    int64_t count = dims == GIVEN ? c->arrays[array].count : 1;
    for (int bit = 0; bit < 4; bit++)
        count *= dims >> bit & 1 ? c->spec.size[bit] : 1;
    return count;
}

/* What a backward is built from; `results` are what it writes, NULL for a timing, which needs no
 * true numbers. */
typedef struct forward_case {
    op_case built;
    double *results[CASE_ARRAYS];
} forward_case;

static void fill(op_case *c, int array, case_type type)
{
    case_array *target = &c->arrays[array];
    int64_t below = c->spec.kind == CASE_CROSS_ENTROPY ? c->spec.size[1] : case_table_rows(c);
    for (int64_t i = 0; i < target->count; i++)
        if (type == CASE_F32)
            ((float *)target->host)[i] = random_float(&c->random);
        else if (type == CASE_I32)
            ((int32_t *)target->host)[i] = (int32_t)random_below(&c->random, below);
        else if (type == CASE_BF16)
            ((uint16_t *)target->host)[i] = sli_bf16_from_f32(random_float(&c->random));
        else
            ((unsigned char *)target->host)[i] = (unsigned char)random_bits(&c->random);
}

static void take_forwards(op_case *c, int array, const forward_case *forward, int index)
{
    const double *written = forward->results[index];
    case_array *target = &c->arrays[array];
    const void *given = forward->built.arrays[index].host;
    if (!written && given)
        memcpy(target->host, given, (size_t)target->count * sizeof(float));
    for (int64_t i = 0; i < target->count && written; i++)
        ((float *)target->host)[i] = (float)written[i];
}

/* The saved tensor of an activation's gradient may be either. */
static int forward_array(const op_case *c, const case_array_info *info)
{
    bool wants_pre = case_has(c, WITH_GELU) || (case_has(c, WITH_SAVED) && c->spec.p == 0);
    return c->spec.kind == CASE_EPILOGUE_BACKWARD && wants_pre ? EPILOGUE_PRE : info->from - 1;
}

static void build_array(op_case *c, int array, const forward_case *forward)
{
    const case_array_info *info = &case_operations[c->spec.kind].arrays[array];
    int64_t count = count_of(c, array, info->dims);
    size_t bytes = (size_t)count * case_type_bytes(info->type);
    void *host = malloc(bytes ? bytes : 1);
    if (!host)
        abort();
    memset(host, 0xFF, bytes); /* NaN */
    c->arrays[array] = (case_array){count, host, -1};
    memcpy(argument(c, info->field), &host, sizeof host);
    if (info->from && !*c->spec.name)
        take_forwards(c, array, forward, forward_array(c, info));
    else if (info->use != OUT && (!info->is_sum || case_has(c, WITH_BETA)))
        fill(c, array, info->type);
    if (case_has(c, OVER_X) && info->over_x)
        c->arrays[array].over = info->over_x - 1;
    else if (case_has(c, OVER_RESIDUAL) && info->over_residual &&
             c->arrays[info->over_residual - 1].host)
        c->arrays[array].over = info->over_residual - 1;
}

static void build_forward(op_case *c, forward_case *out)
{
    const case_operation *operation = &case_operations[c->spec.kind];
    case_spec spec = c->spec;
    spec.kind = operation->forward;
    spec.flags = (c->spec.flags & ~operation->forward_leaves) | operation->forward_has;
    case_build(&spec, c->random.state, &out->built);
    c->random.state = ~c->random.state;
    if (!*c->spec.name)
        case_reference(&out->built, out->results);
}

static void set(op_case *c, size_t offset, const void *value, size_t bytes)
{
    if (offset)
        memcpy(argument(c, offset), value, bytes);
}

static void set_common(op_case *c, forward_case *from)
{
    const case_operation *operation = &case_operations[c->spec.kind];
    float beta = case_has(c, WITH_BETA) ? 1 : 0, scale = 1.7f;
    bool causal = case_has(c, WITH_CAUSAL_MASK);
    int64_t rows = case_table_rows(c);
    sli_activation gelu = case_has(c, WITH_TANH) ? SLI_ACTIVATION_GELU_TANH : SLI_ACTIVATION_GELU;
    sli_activation activation = case_has(c, WITH_GELU)   ? gelu
                                : case_has(c, WITH_RELU) ? SLI_ACTIVATION_RELU
                                                         : SLI_ACTIVATION_NONE;
    sli_dropout dropout = {.p = c->spec.p,
                           .key = sli_philox_key_make(random_bits(&c->random), SLI_RANDOM_DROPOUT),
                           .step = random_bits(&c->random),
                           .site = random_bits(&c->random) >> 8,
                           .first_sample = UINT32_MAX - 1, /* the third one's number wraps to 0 */
                           .rows_per_sample = 1 + random_below(&c->random, CASE_MOST_POSITIONS),
                           .first_row = random_below(&c->random, CASE_MOST_POSITIONS)};
    const case_operation *forward = &case_operations[from->built.spec.kind];
    if (operation->forward && operation->forward != c->spec.kind)
        memcpy(&dropout, argument(&from->built, forward->dropout), sizeof dropout);
    memcpy(&c->arguments, c->spec.size, (size_t)operation->sizes * sizeof(int64_t));
    set(c, operation->dropout, &dropout, sizeof dropout);
    set(c, operation->beta, &beta, sizeof beta);
    set(c, operation->activation, &activation, sizeof activation);
    set(c, operation->scale, &scale, sizeof scale);
    set(c, operation->causal, &causal, sizeof causal);
    set(c, operation->table_rows, &rows, sizeof rows);
}

void case_build(const case_spec *spec, uint64_t seed, op_case *out)
{
    const case_operation *operation = &case_operations[spec->kind];
    forward_case forward = {0};
    *out = (op_case){.spec = *spec, .random = {seed}};
    if (operation->forward && operation->forward != spec->kind)
        build_forward(out, &forward);
    set_common(out, &forward);
    if (operation->prepare)
        operation->prepare(out);
    for (int a = 0; a < CASE_ARRAYS; a++) {
        const case_array_info *info = &operation->arrays[a];
        if (info->name && (!info->when || spec->flags & info->when))
            build_array(out, a, &forward);
    }
    if (operation->adjust)
        operation->adjust(out);
    case_free(&forward.built);
    for (int a = 0; a < CASE_ARRAYS; a++)
        free(forward.results[a]);
}

/* ---- What it is ------------------------------------------------------------------------- */

void case_free(op_case *c)
{
    for (int a = 0; a < CASE_ARRAYS; a++) {
        free(c->arrays[a].host);
        c->arrays[a].host = NULL;
    }
}

const char *case_text(const case_spec *spec, char text[CASE_TEXT_BYTES])
{
    snprintf(text, CASE_TEXT_BYTES,
             "%s %" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64 ", flags %#x, p %g",
             case_operations[spec->kind].name, spec->size[0], spec->size[1], spec->size[2],
             spec->size[3], spec->flags, (double)spec->p);
    return text;
}

void case_reference(const op_case *c, double *expected[CASE_ARRAYS])
{
    const case_operation *operation = &case_operations[c->spec.kind];
    for (int a = 0; a < CASE_ARRAYS; a++) {
        const case_array *array = &c->arrays[a];
        expected[a] = NULL;
        if (!array->host || operation->arrays[a].use == IN)
            continue;
        expected[a] = calloc((size_t)array->count + 1, sizeof(double));
        for (int64_t i = 0; i < array->count; i++)
            expected[a][i] = case_element(operation->arrays[a].type, array->host, i);
    }
    operation->reference(c, expected);
}

double case_bytes(const op_case *c, bool writes)
{
    const case_operation *operation = &case_operations[c->spec.kind];
    double bytes = 0;
    for (int a = 0; a < CASE_ARRAYS; a++) {
        case_use use = operation->arrays[a].use;
        if (!c->arrays[a].host)
            continue;
        bool only_read =
            a == 0 && operation->writes && c->spec.p == 0 && !(c->spec.flags & operation->writes);
        if (writes ? use != IN && !only_read : use != OUT)
            bytes +=
                (double)c->arrays[a].count * (double)case_type_bytes(operation->arrays[a].type);
    }
    return bytes;
}

double case_flop(const op_case *c)
{
    const int64_t *size = c->spec.size;
    double product = 2.0 * (double)size[0] * (double)size[1] * (double)size[2];
    double heads = 2 * product * (double)size[1] * (double)size[3];
    if (c->spec.kind == CASE_GEMM)
        return product;
    /* As if no key were masked, and without the second q k^T of backward. */
    return c->spec.kind == CASE_ATTENTION            ? heads
           : c->spec.kind == CASE_ATTENTION_BACKWARD ? 2 * heads
                                                     : 0;
}

/* ---- On a device ------------------------------------------------------------------------ */

static size_t bytes_of(const op_case *c, int array)
{
    return (size_t)c->arrays[array].count *
           case_type_bytes(case_operations[c->spec.kind].arrays[array].type);
}

static bool is_on_host(const op_case *c, int array)
{
    return case_operations[c->spec.kind].arrays[array].on_host;
}

/* The array whose memory this one uses. */
static int owner(const op_case *c, int array)
{
    while (c->arrays[array].over >= 0)
        array = c->arrays[array].over;
    return array;
}

static sl_status load_array(loaded_case *loaded, int array)
{
    const op_case *c = loaded->from;
    size_t bytes = bytes_of(c, array);
    if (is_on_host(c, array)) {
        loaded->memory[array] = malloc(bytes + 1);
        if (!loaded->memory[array])
            return sl_error(SL_ERR_MEMORY, "no memory for a case");
        memcpy(loaded->memory[array], c->arrays[array].host, bytes);
        return SL_OK;
    }
    SL_TRY(sli_device_allocate(loaded->device, SL_MEMORY_WORKSPACE, bytes, &loaded->memory[array]));
    return sli_device_write(loaded->device, loaded->memory[array], c->arrays[array].host, bytes);
}

sl_status case_load(sl_device *device, const op_case *c, loaded_case *out)
{
    *out = (loaded_case){.device = device, .from = c, .arguments = c->arguments};
    sl_status status = SL_OK;
    for (int a = 0; a < CASE_ARRAYS && status == SL_OK; a++)
        if (c->arrays[a].host && owner(c, a) == a)
            status = load_array(out, a);
    for (int a = 0; a < CASE_ARRAYS; a++) {
        char *field = (char *)&out->arguments + case_operations[c->spec.kind].arrays[a].field;
        if (c->arrays[a].host)
            memcpy(field, &out->memory[owner(c, a)], sizeof out->memory[0]);
    }
    if (status != SL_OK)
        case_unload(out);
    return status;
}

sl_status case_run(const loaded_case *c)
{
    return case_operations[c->from->spec.kind].run(c->device, &c->arguments);
}

sl_status case_read(const loaded_case *c, int array, void *host)
{
    const void *memory = c->memory[owner(c->from, array)];
    size_t bytes = bytes_of(c->from, array);
    if (!is_on_host(c->from, array))
        return sli_device_read(c->device, host, memory, bytes);
    memcpy(host, memory, bytes);
    return SL_OK;
}

void case_unload(loaded_case *c)
{
    for (int a = 0; a < CASE_ARRAYS; a++) {
        if (is_on_host(c->from, a))
            free(c->memory[a]);
        else
            sli_device_release(c->device, SL_MEMORY_WORKSPACE, c->memory[a], bytes_of(c->from, a));
        c->memory[a] = NULL;
    }
}
