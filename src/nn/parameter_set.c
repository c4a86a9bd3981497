/* Parameter sets: parameters placed on a device, with values and gradients in flat buckets.
 *
 *   registration   a b c d e          (frozen parameters and buffers have tensors of their own)
 *   buckets        [e d] [c] [b a]    reverse order: backward is done with e first
 *                   │ └ starts at a multiple of 64 bytes, a part as far behind one as it does in
 *                   │   the whole parameter; gaps are 0 in values and gradients
 *                   └ closed when the bytes of its parameters, gaps not counted, reach the limit
 *
 * These are the buckets of PyTorch's _compute_bucket_assignment_by_size for the reversed list. A
 * gap of zeros changes no sum and no norm, and an optimizer's step leaves it 0. */
#include "nn/module.h"

#include "device/device.h"
#include "tensor/tensor.h"

#include <assert.h>
#include <stdlib.h>

enum {
    ALIGNMENT_ELEMENTS = 64 / sizeof(float),
    FIRST_BUCKET_BYTES = 1 << 20,
    BUCKET_BYTES = 25 << 20,
};

typedef struct parameter_bucket {
    int first, count; /* of set->parameters, trained ones, counted from the end */
    int64_t elements; /* with gaps */
    sl_tensor *values;
    sl_tensor *grads; /* NULL without gradients */
} parameter_bucket;

struct sl_parameter_set {
    sl_module *root; /* of the tree, which counts this set; NULL until it does */
    sl_parameter_set_options options;
    sl_parameter **parameters; /* in order of registration, behind parts of others */
    int count, part_count;
    sl_parameter **trained; /* in reverse order: as they lie in the buckets */
    int trained_count;
    parameter_bucket *buckets;
    int bucket_count;
};

/* ---- Which parameters ------------------------------------------------------------------- */

static int count_below(const sl_module *module)
{
    int count = module->parameter_count;
    for (int i = 0; i < module->child_count; i++)
        count += count_below(module->children[i]);
    return count;
}

static void list_below(sl_module *module, bool leaves_cut, sl_parameter_set *set)
{
    for (int i = 0; i < module->parameter_count; i++)
        if (!leaves_cut || !module->parameters[i]->is_cut)
            set->parameters[set->count++] = module->parameters[i];
    for (int i = 0; i < module->child_count; i++)
        list_below(module->children[i], leaves_cut, set);
}

static sl_status check_range(const sl_module *root, int first, int count)
{
    bool whole = first == 0 && count == 0;
    if (!whole && !sli_module_is_sequential(root))
        return sl_error(
            SL_ERR_INVALID,
            "sl_parameter_set_create: only a sequential can be divided among sets, got %s",
            sl_module_type(root));
    if (!whole && (first < 0 || count < 0 || first > root->child_count - count))
        return sl_error(SL_ERR_INVALID,
                        "sl_parameter_set_create: %d children from child %d of a sequential of %d",
                        count, first, root->child_count);
    return SL_OK;
}

static sl_status list_parameters(sl_parameter_set *set, sl_module *root, int first, int count,
                                 sl_parameter *const *parts, int part_count)
{
    bool whole = first == 0 && count == 0;
    int total = part_count + (whole ? count_below(root) : 0);
    for (int i = first; i < first + count; i++)
        total += count_below(root->children[i]);
    set->parameters = calloc((size_t)total + 1, sizeof(sl_parameter *));
    set->trained = calloc((size_t)total + 1, sizeof(sl_parameter *));
    set->buckets = calloc((size_t)total + 1, sizeof *set->buckets);
    if (!set->parameters || !set->trained || !set->buckets)
        return sli_no_memory("sl_parameter_set_create", "the list of %d parameters", total);
    for (; set->part_count < part_count; set->part_count++)
        set->parameters[set->count++] = parts[set->part_count];
    if (whole)
        list_below(root, parts, set);
    for (int i = first; i < first + count; i++)
        list_below(root->children[i], parts, set);
    for (int i = set->count - 1; i >= 0; i--)
        if (set->parameters[i]->kind == SL_PARAMETER_TRAINED)
            set->trained[set->trained_count++] = set->parameters[i];
    return SL_OK;
}

/* ---- Buckets ---------------------------------------------------------------------------- */

static int64_t elements_of(const sl_parameter *parameter)
{
    return sl_shape_count(&parameter->shape);
}

int64_t sli_parameter_lead(const sl_parameter *parameter)
{
    return parameter->first % ALIGNMENT_ELEMENTS;
}

int64_t sli_parameter_room(const sl_parameter *parameter)
{
    return (sli_parameter_lead(parameter) + elements_of(parameter) + ALIGNMENT_ELEMENTS - 1) /
           ALIGNMENT_ELEMENTS * ALIGNMENT_ELEMENTS;
}

/* Whether each parameter has a block of memory of its own, so that a file's memory can replace it.
 * Large blocks serve the exchange of gradients, of which there are none. */
static bool is_each_alone(const sl_parameter_set *set)
{
    return set->options.no_gradients && sl_device_has_host_memory(set->options.device);
}

static int64_t room_in(const sl_parameter_set *set, const sl_parameter *parameter)
{
    return is_each_alone(set) ? elements_of(parameter) : sli_parameter_room(parameter);
}

static void assign_buckets(sl_parameter_set *set)
{
    const sl_parameter_set_options *options = &set->options;
    int64_t later = options->bucket_bytes ? options->bucket_bytes : BUCKET_BYTES;
    int64_t limit = options->first_bucket_bytes ? options->first_bucket_bytes : FIRST_BUCKET_BYTES;
    if (is_each_alone(set))
        limit = later = 1;
    for (int i = 0; i < set->trained_count;) {
        parameter_bucket *open = &set->buckets[set->bucket_count++];
        *open = (parameter_bucket){.first = i};
        for (int64_t bytes = 0; i < set->trained_count && bytes < limit; i++) {
            bytes += elements_of(set->trained[i]) * (int64_t)sizeof(float);
            open->elements += room_in(set, set->trained[i]);
            open->count++;
        }
        limit = later;
    }
}

static sl_status zero_range(sl_tensor *flat, int64_t first, int64_t end)
{
    sl_shape shape = sl_shape_1d(end - first);
    sl_tensor *view;
    SL_TRY(sl_tensor_view(flat, first, &shape, &view));
    sl_status status = sli_tensor_zero(view);
    sl_tensor_destroy(&view);
    return status;
}

/* Makes the parameters' values or gradients views into `flat`, with zeros between them. */
static sl_status create_views(const sl_parameter_set *set, const parameter_bucket *bucket,
                              sl_tensor *flat, bool grads)
{
    int64_t offset = 0;
    for (int i = bucket->first; i < bucket->first + bucket->count; i++) {
        sl_parameter *parameter = set->trained[i];
        int64_t begin = offset + sli_parameter_lead(parameter);
        int64_t end = begin + elements_of(parameter), next = offset + room_in(set, parameter);
        SL_TRY(sl_tensor_view(flat, begin, &parameter->shape,
                              grads ? &parameter->grad : &parameter->value));
        if (begin > offset)
            SL_TRY(zero_range(flat, offset, begin));
        if (next > end)
            SL_TRY(zero_range(flat, end, next));
        offset = next;
    }
    return SL_OK;
}

static sl_status allocate_bucket(const sl_parameter_set *set, parameter_bucket *bucket)
{
    sl_device *device = set->options.device;
    sl_shape shape = sl_shape_1d(bucket->elements);
    SL_TRY(sl_tensor_create(device, SL_MEMORY_PARAMETERS, SL_F32, &shape, &bucket->values));
    SL_TRY(create_views(set, bucket, bucket->values, false));
    if (set->options.no_gradients)
        return SL_OK;
    SL_TRY(sl_tensor_create(device, SL_MEMORY_GRADIENTS, SL_F32, &shape, &bucket->grads));
    return create_views(set, bucket, bucket->grads, true);
}

/* They share the value. */
static sl_status allocate_ties(const sl_parameter_set *set, const sl_parameter *parameter)
{
    for (sl_parameter *tied = parameter->ties; tied; tied = tied->next_tie) {
        SL_TRY(sl_tensor_alias(parameter->value, &tied->value));
        if (parameter->grad)
            SL_TRY(sl_tensor_create(set->options.device, SL_MEMORY_GRADIENTS, SL_F32, &tied->shape,
                                    &tied->grad));
    }
    return SL_OK;
}

/* The copy for products is one as well. */
static sl_status allocate_copy(const sl_parameter_set *set, sl_parameter *parameter)
{
    parameter->tf32 = set->options.precision == SL_PRECISION_TF32;
    for (sl_parameter *tied = parameter->ties; tied; tied = tied->next_tie)
        tied->tf32 = parameter->tf32;
    if (set->options.precision != SL_PRECISION_BF16 || !sli_parameter_is_in_products(parameter))
        return SL_OK;
    if (sl_tensor_dtype(parameter->value) == SL_BF16)
        SL_TRY(sl_tensor_alias(parameter->value, &parameter->bf16));
    else
        SL_TRY(sl_tensor_create(set->options.device, SL_MEMORY_PARAMETERS, SL_BF16,
                                &parameter->shape, &parameter->bf16));
    for (sl_parameter *tied = parameter->ties; tied; tied = tied->next_tie)
        SL_TRY(sl_tensor_alias(parameter->bf16, &tied->bf16));
    return SL_OK;
}

static sl_status allocate_parameters(sl_parameter_set *set)
{
    for (int i = 0; i < set->bucket_count; i++)
        SL_TRY(allocate_bucket(set, &set->buckets[i]));
    for (int i = 0; i < set->count; i++) {
        sl_parameter *parameter = set->parameters[i];
        if (parameter->kind != SL_PARAMETER_TRAINED)
            SL_TRY(sl_tensor_create(set->options.device, SL_MEMORY_PARAMETERS,
                                    sli_parameter_dtype(parameter, set->options.precision),
                                    &parameter->shape, &parameter->value));
        SL_TRY(allocate_ties(set, parameter));
        SL_TRY(allocate_copy(set, parameter));
    }
    sl_parameter_set_zero_grad(set);
    return SL_OK;
}

/* ---- Initial values --------------------------------------------------------------------- */

static sl_status fill_from_host(const sl_parameter *parameter, sl_tensor *to)
{
    int64_t count = elements_of(parameter);
    float *values = malloc((size_t)count * sizeof *values);
    if (!values)
        return sli_no_memory(NULL, "the initial values of %s", parameter->path);
    parameter->fill(parameter->module, values, count);
    sl_status status = sl_tensor_write(to, values);
    free(values);
    return status;
}

static sli_init initial_values(const sl_parameter *parameter)
{
    if (parameter->deviation > 0)
        return (
            sli_init){.kind = SLI_INIT_NORMAL, .low = parameter->low, .high = parameter->deviation};
    bool constant = parameter->low == parameter->high;
    return (sli_init){.kind = constant ? SLI_INIT_CONSTANT : SLI_INIT_UNIFORM,
                      .low = parameter->low,
                      .high = parameter->high};
}

/* Random numbers come four at a time, and a part may begin between them: by way of `buffer`
 * [size], from the four before it on. */
static sl_status draw_part(const sl_parameter_set *set, const sl_parameter *parameter,
                           sl_tensor *buffer, sl_tensor *to)
{
    sli_init init = initial_values(parameter);
    sl_device *device = set->options.device;
    int64_t count = elements_of(parameter), size = sl_tensor_count(buffer), done;
    for (int64_t at = 0; at < count; at += done) {
        int64_t skipped = (parameter->first + at) % 4;
        done = size - skipped < count - at ? size - skipped : count - at;
        init.first = parameter->first + at - skipped;
        SL_TRY(sli_device_initialize(device, &init, set->options.seed, parameter->number,
                                     skipped + done, sl_tensor_f32(buffer)));
        SL_TRY(sli_device_copy(device, sl_tensor_f32(to) + at, sl_tensor_f32(buffer) + skipped,
                               (size_t)done * sizeof(float)));
    }
    return SL_OK;
}

static sl_status initialize_part(const sl_parameter_set *set, const sl_parameter *parameter,
                                 sl_tensor *to)
{
    const sl_shape shape = sl_shape_1d(1 << 14);
    sl_tensor *buffer;
    SL_TRY(sl_tensor_create(set->options.device, SL_MEMORY_WORKSPACE, SL_F32, &shape, &buffer));
    sl_status status = draw_part(set, parameter, buffer, to);
    sl_tensor_destroy(&buffer);
    return status;
}

/* `to` is f32. */
static sl_status initialize_tensor(const sl_parameter_set *set, const sl_parameter *parameter,
                                   sl_tensor *to)
{
    if (parameter->fill)
        return fill_from_host(parameter, to);
    if (parameter->first > 0)
        return initialize_part(set, parameter, to);
    sli_init init = initial_values(parameter);
    return sli_device_initialize(set->options.device, &init, set->options.seed, parameter->number,
                                 elements_of(parameter), sl_tensor_f32(to));
}

static sl_status initialize_narrow(const sl_parameter_set *set, const sl_parameter *parameter)
{
    sl_tensor *wide;
    SL_TRY(sl_tensor_create(set->options.device, SL_MEMORY_WORKSPACE, SL_F32, &parameter->shape,
                            &wide));
    sl_status status;
    SL_TRY_OR_FAIL(initialize_tensor(set, parameter, wide));
    status = sli_tensor_convert(wide, parameter->value);
fail:
    sl_tensor_destroy(&wide);
    return status;
}

static sl_status initialize_values(const sl_parameter_set *set)
{
    for (int i = 0; i < set->count; i++) {
        const sl_parameter *parameter = set->parameters[i];
        if (set->options.no_init && !parameter->fill && !parameter->is_adapter)
            continue;
        SL_TRY(sl_tensor_dtype(parameter->value) == SL_BF16
                   ? initialize_narrow(set, parameter)
                   : initialize_tensor(set, parameter, parameter->value));
    }
    return SL_OK;
}

/* ---- Public functions ------------------------------------------------------------------- */

sl_status sli_parameter_check_unplaced(const sl_parameter *parameter)
{
    return parameter->value || parameter->is_cut
               ? sl_error(SL_ERR_INVALID, "parameter %s is in a parameter set already",
                          parameter->path)
               : SL_OK;
}

static sl_status check_unplaced(const sl_parameter_set *set)
{
    for (int i = 0; i < set->count; i++)
        SL_TRY(sl_error_context(sli_parameter_check_unplaced(set->parameters[i]),
                                "sl_parameter_set_create: "));
    return SL_OK;
}

static sl_status check_options(const sl_parameter_set_options *options)
{
    if (!options->device)
        return sl_error(SL_ERR_INVALID, "sl_parameter_set_create: parameters need a device");
    if (options->first_bucket_bytes < 0 || options->bucket_bytes < 0)
        return sl_error(SL_ERR_INVALID,
                        "sl_parameter_set_create: a bucket's bytes must not be negative");
    if (options->precision == SL_PRECISION_TF32 && !sli_device_has_tf32(options->device))
        return sl_error(SL_ERR_UNSUPPORTED,
                        "%s has no products in tf32: use f32 or bf16, or GPUs for all stages",
                        sl_device_name(options->device));
    return SL_OK;
}

sl_status sl_parameter_set_create(sl_module *root, int first, int count,
                                  const sl_parameter_set_options *options, sl_parameter_set **out)
{
    return sli_parameter_set_create(root, first, count, NULL, 0, options, out);
}

sl_status sli_parameter_set_create(sl_module *root, int first, int count,
                                   sl_parameter *const *parts, int part_count,
                                   const sl_parameter_set_options *options, sl_parameter_set **out)
{
    *out = NULL;
    assert(part_count == 0 || !options->no_gradients); /* whose buckets have no gaps */
    SL_TRY(check_options(options));
    SL_TRY(check_range(root, first, count));
    sl_parameter_set *set = calloc(1, sizeof *set);
    if (!set)
        return sli_no_memory("sl_parameter_set_create", "a parameter set");
    set->options = *options;
    sl_status status;
    SL_TRY_OR_FAIL(list_parameters(set, root, first, count, parts, part_count));
    status = check_unplaced(set);
    if (status != SL_OK) {
        set->count = 0; /* what another set placed is not ours to take back */
        goto fail;
    }
    assign_buckets(set);
    SL_TRY_OR_FAIL(allocate_parameters(set));
    SL_TRY_OR_FAIL(initialize_values(set));
    if (!set->options.no_init)
        SL_TRY_OR_FAIL(sli_parameter_set_convert(set));
    set->root = sli_module_root(root);
    atomic_fetch_add(&set->root->sets, 1);
    *out = set;
    return SL_OK;

fail:
    sl_parameter_set_destroy(&set);
    return status;
}

sl_status sli_parameter_set_convert(sl_parameter_set *set)
{
    for (int i = 0; i < set->count; i++)
        if (set->parameters[i]->bf16 && sl_tensor_dtype(set->parameters[i]->value) == SL_F32)
            SL_TRY(sli_tensor_convert(set->parameters[i]->value, set->parameters[i]->bf16));
    return SL_OK;
}

static void destroy_tensors(sl_parameter *parameter)
{
    sl_tensor_destroy(&parameter->bf16);
    sl_tensor_destroy(&parameter->value);
    sl_tensor_destroy(&parameter->grad);
}

void sl_parameter_set_destroy(sl_parameter_set **set)
{
    if (!set || !*set)
        return;
    for (int i = 0; i < (*set)->count; i++) {
        destroy_tensors((*set)->parameters[i]);
        for (sl_parameter *tied = (*set)->parameters[i]->ties; tied; tied = tied->next_tie)
            destroy_tensors(tied);
    }
    for (int i = 0; i < (*set)->bucket_count; i++) {
        sl_tensor_destroy(&(*set)->buckets[i].values);
        sl_tensor_destroy(&(*set)->buckets[i].grads);
    }
    if ((*set)->root)
        atomic_fetch_sub(&(*set)->root->sets, 1);
    free((*set)->parameters);
    free((*set)->trained);
    free((*set)->buckets);
    free(*set);
    *set = NULL;
}

int sl_parameter_set_count(const sl_parameter_set *set)
{
    return set ? set->count : 0;
}

sl_parameter *sl_parameter_set_get(const sl_parameter_set *set, int index)
{
    return set->parameters[index];
}

/* Those of the tree have ascending numbers, successive ones but where others are cut. */
int sli_parameter_set_index(const sl_parameter_set *set, const sl_parameter *parameter)
{
    for (int i = 0; i < set->part_count; i++)
        if (set->parameters[i] == parameter)
            return i;
    assert(set->part_count < set->count);
    uint32_t first = set->parameters[set->part_count]->number;
    int index = set->part_count + (int)(parameter->number - first);
    while (index >= set->count || set->parameters[index]->number > parameter->number)
        index--;
    assert(set->parameters[index] == parameter);
    return index;
}

sl_device *sl_parameter_set_device(const sl_parameter_set *set)
{
    return set->options.device;
}

int sl_parameter_set_bucket_count(const sl_parameter_set *set)
{
    return set ? set->bucket_count : 0;
}

sl_tensor *sl_parameter_set_bucket_values(const sl_parameter_set *set, int index)
{
    return set->buckets[index].values;
}

sl_status sl_parameter_set_bucket_grads(sl_parameter_set *set, int index, sl_tensor **out)
{
    const parameter_bucket *bucket = &set->buckets[index];
    for (int i = bucket->first; i < bucket->first + bucket->count; i++)
        SL_TRY(sl_parameter_grad(set->trained[i], out));
    *out = bucket->grads;
    return SL_OK;
}

int sli_parameter_set_bucket(const sl_parameter_set *set, int index, sl_parameter *const **out)
{
    *out = set->trained + set->buckets[index].first;
    return set->buckets[index].count;
}

uint64_t sli_parameter_set_seed(const sl_parameter_set *set)
{
    return set->options.seed;
}

sl_tensor *sli_parameter_set_stale_grads(const sl_parameter_set *set, int index)
{
    return set->buckets[index].grads;
}

void sl_parameter_set_zero_grad(sl_parameter_set *set)
{
    for (int i = 0; i < set->trained_count; i++) {
        set->trained[i]->grad_is_stale = true;
        for (sl_parameter *tied = set->trained[i]->ties; tied; tied = tied->next_tie)
            tied->grad_is_stale = true;
    }
}
