/* Gradient clipping by the norm of all parameters together (torch.nn.utils.clip_grad_norm_).
 *
 * Each parameter (of a split head, each block) contributes one term, computed on its own device
 * from its elements alone; the terms are combined in the model's order. So the norm, and with it
 * every weight, is the same bit for bit however the model is cut into stages. The gradients are not
 * rewritten: the optimizer multiplies them by the coefficient while it reads them. */
#include "optim/optimizer.h"
#include "sluice/optim.h"

#include "device/device.h"
#include "nn/module.h"

#include <math.h>

static sli_norm_kind device_kind(sl_grad_norm_kind kind)
{
    switch (kind) {
    case SL_GRAD_NORM_L1:
        return SLI_NORM_L1;
    case SL_GRAD_NORM_L2:
        return SLI_NORM_L2;
    case SL_GRAD_NORM_INF:
        return SLI_NORM_INF;
    }
    return SLI_NORM_L2;
}

static bool has_term(const sl_parameter *parameter)
{
    return parameter->grad && !parameter->has_block_terms;
}

static int count_terms(const sl_parameter_set *set)
{
    int count = 0;
    for (int i = 0; i < sl_parameter_set_count(set); i++)
        count += has_term(sl_parameter_set_get(set, i));
    return count;
}

/* Arrays whose terms a device computes together: it waits for results once. */
enum { MOST_ARRAYS = 128 };

/* Appends the batch's terms to terms[*count], and empties it. */
static sl_status add_terms(sl_device *device, sli_norm_terms *batch, double *terms, int *count)
{
    batch->out = terms + *count;
    *count += batch->count;
    SL_TRY(sli_device_norm_terms(device, batch));
    batch->count = 0;
    return SL_OK;
}

sl_status sli_grad_norm_array_terms(sl_device *device, sl_grad_norm_kind kind,
                                    const sli_norm_array *arrays, int count, double *terms)
{
    return sli_device_norm_terms(device, &(sli_norm_terms){.kind = device_kind(kind),
                                                           .count = count,
                                                           .arrays = arrays,
                                                           .out = terms});
}

sl_status sli_grad_norm_terms(sl_parameter_set *set, sl_grad_norm_kind kind, double *terms,
                              int size, int *count)
{
    sl_device *device = sl_parameter_set_device(set);
    *count = 0;
    if (count_terms(set) > size)
        return sl_error(SL_ERR_INVALID,
                        "%d trained parameters give as many terms, there is "
                        "room for %d",
                        count_terms(set), size);
    sli_norm_array arrays[MOST_ARRAYS];
    sli_norm_terms batch = {.kind = device_kind(kind), .arrays = arrays};
    for (int i = 0; i < sl_parameter_set_count(set); i++) {
        const sl_parameter *parameter = sl_parameter_set_get(set, i);
        const sl_tensor *grad = parameter->grad;
        if (!has_term(parameter))
            continue;
        if (batch.count == MOST_ARRAYS)
            SL_TRY(add_terms(device, &batch, terms, count));
        int64_t elements = parameter->grad_is_stale ? 0 : sl_tensor_count(grad);
        arrays[batch.count++] = (sli_norm_array){elements, sl_tensor_f32(grad)};
    }
    return add_terms(device, &batch, terms, count);
}

double sli_grad_norm_combine(sl_grad_norm_kind kind, const double *terms, int count)
{
    double total = 0;
    for (int i = 0; i < count; i++) {
        if (kind != SL_GRAD_NORM_INF)
            total += terms[i];
        else if (terms[i] > total || isnan(terms[i]))
            total = terms[i];
        if (isnan(total))
            return total;
    }
    return kind == SL_GRAD_NORM_L2 ? sqrt(total) : total;
}

double sli_clip_coefficient(double norm, double max_norm)
{
    double coefficient = max_norm / (norm + 1e-6);
    return coefficient < 1 ? coefficient : isnan(coefficient) ? coefficient : 1;
}
