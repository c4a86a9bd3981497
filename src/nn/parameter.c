/* Parameters: what a module declares, and the access of its kernels to values and gradients. */
#include "nn/module.h"
#include "tensor/tensor.h"

#include "core/memory.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- Declaration ------------------------------------------------------------------------ */

/* However long: ties and files know the parameter by it, where sli_module_path is for messages. */
static sl_status rename_one(sl_parameter *parameter)
{
    size_t length = strlen(parameter->name), end = length;
    for (const sl_module *node = parameter->module; node->parent; node = node->parent)
        end += strlen(node->name) + 1;
    char *path = malloc(end + 1);
    if (!path)
        return sli_no_memory(NULL, "the name of parameter \"%s\"", parameter->name);
    end -= length;
    memcpy(path + end, parameter->name, length + 1);
    for (const sl_module *node = parameter->module; node->parent; node = node->parent) {
        length = strlen(node->name);
        path[--end] = '.';
        end -= length;
        memcpy(path + end, node->name, length);
    }
    free(parameter->path);
    parameter->path = path;
    return SL_OK;
}

sl_status sli_parameters_rename(sl_module *module)
{
    for (int i = 0; i < module->parameter_count; i++) {
        SL_TRY(rename_one(module->parameters[i]));
        for (sl_parameter *tied = module->parameters[i]->ties; tied; tied = tied->next_tie)
            SL_TRY(rename_one(tied));
    }
    for (int i = 0; i < module->child_count; i++)
        SL_TRY(sli_parameters_rename(module->children[i]));
    return SL_OK;
}

static sl_status check_spec(sl_module *module, const sl_parameter_spec *spec)
{
    SL_TRY(sli_module_check_name(module, spec->name));
    SL_TRY(sli_module_check_open(module, "parameter", spec->name));
    int64_t bytes = sizeof(float);
    if (spec->shape.dims < 0 || spec->shape.dims > SL_MAX_DIMS)
        return sl_error(SL_ERR_INVALID, "%s: parameter \"%s\" has 0 to %d dimensions, got %d",
                        module->ops->type, spec->name, SL_MAX_DIMS, spec->shape.dims);
    for (int i = 0; i < spec->shape.dims; i++) {
        char text[SL_SHAPE_TEXT_BYTES];
        if (spec->shape.size[i] < 1 || __builtin_mul_overflow(bytes, spec->shape.size[i], &bytes))
            return sl_error(SL_ERR_INVALID, "%s: parameter \"%s\" cannot have shape %s",
                            module->ops->type, spec->name, sl_shape_text(&spec->shape, text));
    }
    if (!(spec->deviation >= 0))
        return sl_error(SL_ERR_INVALID,
                        "%s: the deviation of \"%s\"'s initial values must not be negative, got %g",
                        module->ops->type, spec->name, (double)spec->deviation);
    if (spec->deviation == 0 && !(spec->low <= spec->high))
        return sl_error(SL_ERR_INVALID,
                        "%s: initial values of \"%s\" lie between low and high, got %g and %g",
                        module->ops->type, spec->name, (double)spec->low, (double)spec->high);
    return SL_OK;
}

sl_status sl_module_add_parameter(sl_module *module, const sl_parameter_spec *spec,
                                  sl_parameter **out)
{
    *out = NULL;
    SL_TRY(check_spec(module, spec));
    SL_TRY(sli_array_reserve(&module->parameters, &module->parameter_capacity,
                             (size_t)module->parameter_count + 1, sizeof *module->parameters,
                             INT_MAX, "parameters"));
    sl_parameter *parameter = calloc(1, sizeof *parameter);
    if (!parameter)
        return sli_no_memory(NULL, "parameter \"%s\"", spec->name);
    parameter->module = module;
    parameter->kind = spec->kind;
    parameter->shape = spec->shape;
    parameter->low = spec->low;
    parameter->high = spec->high;
    parameter->deviation = spec->deviation;
    parameter->fill = spec->fill;
    parameter->name = strdup(spec->name);
    if (!parameter->name || rename_one(parameter) != SL_OK) {
        sli_parameter_destroy(parameter);
        return sli_no_memory(NULL, "parameter \"%s\"", spec->name);
    }
    module->parameters[module->parameter_count++] = parameter;
    sli_module_number_tree(sli_module_root(module));
    *out = parameter;
    return SL_OK;
}

void sli_parameter_destroy(sl_parameter *parameter)
{
    for (sl_parameter *tied = parameter->ties, *next; tied; tied = next) {
        next = tied->next_tie;
        sli_parameter_destroy(tied);
    }
    sl_tensor_destroy(&parameter->bf16);
    sl_tensor_destroy(&parameter->value);
    sl_tensor_destroy(&parameter->grad);
    free(parameter->name);
    free(parameter->path);
    free(parameter);
}

/* ---- Public access ---------------------------------------------------------------------- */

const char *sl_parameter_name(const sl_parameter *parameter)
{
    return parameter->path;
}

sl_parameter_kind sl_parameter_get_kind(const sl_parameter *parameter)
{
    return parameter->tied_to ? parameter->tied_to->kind : parameter->kind;
}

const sl_shape *sl_parameter_shape(const sl_parameter *parameter)
{
    return &parameter->shape;
}

sl_tensor *sl_parameter_value(const sl_parameter *parameter)
{
    return parameter->value;
}

sl_status sl_parameter_grad(sl_parameter *parameter, sl_tensor **out)
{
    *out = NULL;
    if (parameter->grad && parameter->grad_is_stale)
        SL_TRY(sli_tensor_zero(parameter->grad));
    parameter->grad_is_stale = false;
    *out = parameter->grad;
    return SL_OK;
}

sl_tensor *sli_parameter_grad_accumulate(sl_parameter *parameter, float *beta)
{
    *beta = parameter->grad_is_stale ? 0.0f : 1.0f;
    parameter->grad_is_stale = false;
    return parameter->grad;
}

/* ---- Access of the layers --------------------------------------------------------------- */

bool sli_parameter_is_trained(const sl_parameter *parameter)
{
    return sl_parameter_get_kind(parameter) == SL_PARAMETER_TRAINED;
}

bool sli_parameter_is_in_products(const sl_parameter *parameter)
{
    bool found = parameter->in_products;
    for (const sl_parameter *tied = parameter->ties; tied; tied = tied->next_tie)
        found |= tied->in_products;
    return found;
}

sl_dtype sli_parameter_dtype(const sl_parameter *parameter, sl_precision precision)
{
    const sl_parameter *owner = parameter->tied_to ? parameter->tied_to : parameter;
    return owner->is_narrow && precision == SL_PRECISION_BF16 ? SL_BF16 : SL_F32;
}

static sl_status check_place(const sl_parameter *parameter, const sl_device *device)
{
    if (!parameter->value)
        return sl_error(SL_ERR_INVALID,
                        "parameter %s has no value yet: sl_parameter_set_create gives it one",
                        parameter->path);
    if (sl_tensor_device(parameter->value) != device)
        return sl_error(SL_ERR_INVALID, "parameter %s is on %s, the input on %s", parameter->path,
                        sl_device_name(sl_tensor_device(parameter->value)), sl_device_name(device));
    return SL_OK;
}

sl_status sli_parameter_values(const sl_parameter *parameter, const sl_device *device,
                               const float **out)
{
    *out = NULL;
    SL_TRY(check_place(parameter, device));
    if (sl_tensor_dtype(parameter->value) != SL_F32)
        return sl_error(SL_ERR_INVALID, "parameter %s has its value in bf16 alone",
                        parameter->path);
    *out = sl_tensor_f32(parameter->value);
    return SL_OK;
}

sl_status sli_parameter_product_values(const sl_parameter *parameter, const sl_device *device,
                                       const void **out)
{
    *out = NULL;
    SL_TRY(check_place(parameter, device));
    *out = sl_tensor_data(parameter->bf16 ? parameter->bf16 : parameter->value);
    return SL_OK;
}

sl_status sli_parameter_table_values(const sl_parameter *parameter, const sl_device *device,
                                     const float **f32, const uint16_t **bf16)
{
    *f32 = NULL;
    *bf16 = NULL;
    SL_TRY(check_place(parameter, device));
    if (sl_tensor_dtype(parameter->value) == SL_BF16)
        *bf16 = sl_tensor_data(parameter->value);
    else
        *f32 = sl_tensor_f32(parameter->value);
    return SL_OK;
}

sl_status sli_parameter_gradient(sl_parameter *parameter, float *beta, float **out)
{
    *out = NULL;
    sl_tensor *grad = sli_parameter_grad_accumulate(parameter, beta);
    if (!grad)
        return sl_error(SL_ERR_INVALID,
                        "parameter %s has no gradient: its set was created without gradients",
                        parameter->path);
    *out = sl_tensor_f32(grad);
    return SL_OK;
}

sl_status sli_parameter_gradient_pair(sl_parameter *first, sl_parameter *second, float *beta,
                                      float **out_first, float **out_second)
{
    if (first->grad_is_stale != second->grad_is_stale) {
        sl_tensor *grad;
        SL_TRY(sl_parameter_grad(first, &grad));
        SL_TRY(sl_parameter_grad(second, &grad));
    }
    SL_TRY(sli_parameter_gradient(first, beta, out_first));
    return sli_parameter_gradient(second, beta, out_second);
}
