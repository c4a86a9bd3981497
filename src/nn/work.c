/* What a pass over a sequential's children computes, and what it reads of their values. A weight is
 * used in a product once for each row of the input; it gets a gradient, by a product of its own,
 * only where it is trained. */
#include "core/error.h"
#include "nn/layers.h"
#include "nn/module.h"

#include <stdlib.h>

typedef struct counted {
    const sl_module *sequential;
    sl_precision precision;
    sli_pass_work *work;
} counted;

/* A matrix that no product takes is a table: the pass reads a row for each id. */
static void add_parameter(const counted *count, const sl_parameter *parameter, sli_pass_work *out)
{
    int64_t elements = sl_shape_count(&parameter->shape), rows = parameter->shape.size[0];
    bool is_product = parameter->in_products, is_trained = sli_parameter_is_trained(parameter);
    size_t each = is_product && count->precision == SL_PRECISION_BF16
                      ? sl_dtype_bytes(SL_BF16)
                      : sl_dtype_bytes(sli_parameter_dtype(parameter, count->precision));
    double flop = 2 * (double)out->rows * (double)elements;
    if (!is_product && parameter->shape.dims > 1 && rows > out->numbers)
        elements = elements / rows * out->numbers;
    out->value_bytes += (double)elements * (double)each;
    out->trains |= is_trained;
    if (!is_product)
        return;
    out->input -= flop;
    out->weight += is_trained ? flop : 0;
}

static void add_module(const counted *count, const sl_module *module, sli_pass_work *out)
{
    for (int i = 0; i < module->parameter_count; i++)
        add_parameter(count, module->parameters[i], out);
    for (int i = 0; i < module->child_count; i++)
        add_module(count, module->children[i], out);
}

static sl_status add_tied(sl_parameter *tied, void *arg)
{
    const counted *count = arg;
    add_parameter(count, tied, &count->work[sli_module_index_in(count->sequential, tied->module)]);
    return SL_OK;
}

/* Both halves of backward together are twice the forward; the products for weights are those of
 * the weights' half. */
sl_status sli_module_count_work(const sl_module *sequential, const sl_shape *in,
                                sl_precision precision, sli_pass_work *out)
{
    const counted count = {sequential, precision, out};
    sl_shape shape = *in;
    for (int i = 0; i < sl_module_child_count(sequential); i++) {
        const sl_module *module = sl_module_child(sequential, i);
        double forward = (double)sl_module_flops(module, &shape);
        sl_shape next;
        out[i] = (sli_pass_work){.rows = sli_shape_rows(&shape),
                                 .numbers = sl_shape_count(&shape),
                                 .forward = forward,
                                 .input = 2 * forward};
        add_module(&count, module, &out[i]);
        SL_TRY(sl_module_output_shape(module, &shape, &next));
        shape = next;
    }
    return sli_module_for_each_tie(sequential, add_tied, (void *)&count);
}

sl_status sli_module_count_step_flop(const sl_module *sequential, const sl_shape *in, double *out)
{
    int count = sl_module_child_count(sequential), frozen = sli_module_frozen_count(sequential);
    sli_pass_work *work = calloc((size_t)count, sizeof *work);
    *out = 0;
    if (!work)
        return sli_no_memory(NULL, "the work of %d modules", count);
    sl_status status = sli_module_count_work(sequential, in, SL_PRECISION_F32, work);
    for (int i = 0; i < count && status == SL_OK; i++)
        *out += work[i].forward + (i < frozen ? 0 : work[i].input + work[i].weight);
    free(work);
    return status;
}
