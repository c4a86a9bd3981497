/* Losses: a table of functions and its state; and the mean squared error. */
#include "sluice/loss.h"
#include "nn/loss.h"

#include "nn/layers.h"
#include "tensor/tensor.h"

#include <stdlib.h>

struct sl_loss {
    const sl_loss_ops *ops;
    void *state;
};

static void free_state(const sl_loss_ops *ops, void *state)
{
    if (ops->destroy_state)
        ops->destroy_state(state);
    else
        free(state);
}

sl_status sl_loss_create(const sl_loss_ops *ops, void *state, sl_loss **out)
{
    *out = malloc(sizeof **out);
    if (!*out) {
        free_state(ops, state);
        return sli_no_memory("sl_loss_create", "a %s", ops->type);
    }
    **out = (sl_loss){ops, state};
    return SL_OK;
}

void sl_loss_destroy(sl_loss **loss)
{
    if (!loss || !*loss)
        return;
    free_state((*loss)->ops, (*loss)->state);
    free(*loss);
    *loss = NULL;
}

void *sl_loss_state(const sl_loss *loss)
{
    return loss->state;
}

/* The gradient of a bf16 tensor is one. */
static sl_status convert_gradient(const sl_loss_call *call)
{
    if (!call->grad_in || !*call->grad_in || sl_tensor_dtype(call->in) != SL_BF16)
        return SL_OK;
    sl_tensor *wide = *call->grad_in;
    sl_status status = sli_tensor_as(wide, SL_BF16, SL_MEMORY_ACTIVATIONS, call->grad_in);
    sl_tensor_destroy(&wide);
    return status;
}

static sl_status apply(sl_loss *loss, const sl_loss_call *call)
{
    if (call->last && !sli_loss_takes_over(loss, call->last))
        return sl_error(SL_ERR_INVALID, "cannot take over a %s", sl_module_type(call->last));
    SL_TRY(loss->ops->apply(loss, call));
    return convert_gradient(call);
}

sl_status sl_loss_apply(sl_loss *loss, const sl_loss_call *call)
{
    if (call->grad_in)
        *call->grad_in = NULL;
    sl_status status = apply(loss, call);
    if (status != SL_OK && call->grad_in)
        sl_tensor_destroy(call->grad_in);
    return sl_error_context(status, "%s: ", loss->ops->type);
}

const sl_loss_ops *sli_loss_ops(const sl_loss *loss)
{
    return loss->ops;
}

sl_status sl_loss_terms(const sl_loss *loss, const sl_tensor *targets, int64_t *out)
{
    *out = 0;
    return sl_error_context(loss->ops->terms(loss, targets, out), "%s: ", loss->ops->type);
}

int64_t sli_loss_rows(const sl_loss *loss, const sl_tensor *targets)
{
    return loss->ops->rows(loss, targets);
}

sl_status sli_loss_backward_weight(sl_loss *loss, sl_module *last, sl_pass *pass)
{
    if (!loss->ops->backward_weight)
        return SL_OK;
    return sl_error_context(loss->ops->backward_weight(loss, last, pass), "%s: ", loss->ops->type);
}

bool sli_loss_takes_over(const sl_loss *loss, const sl_module *last)
{
    return loss->ops->takes_over && loss->ops->takes_over(loss, last);
}

/* ---- Mean squared error ----------------------------------------------------------------- */

/* A loss for small examples: it is computed in host memory, in double precision, whatever the
 * device. */

static sl_status check_targets(const sl_loss_call *call)
{
    SL_TRY(sli_check_dtype("the output", call->in, SL_F32));
    SL_TRY(sli_check_dtype("the target", call->targets, SL_F32));
    const sl_shape *in = sl_tensor_shape(call->in), *targets = sl_tensor_shape(call->targets);
    if (sl_shape_equal(in, targets))
        return SL_OK;
    char in_text[SL_SHAPE_TEXT_BYTES], target_text[SL_SHAPE_TEXT_BYTES];
    return sl_error(SL_ERR_INVALID, "output and target must have one shape, got %s and %s",
                    sl_shape_text(in, in_text), sl_shape_text(targets, target_text));
}

/* The sums of squares of each row of in - targets; the difference times `factor` replaces `in`. */
static void square_rows(int64_t rows, int64_t columns, float *in, const float *targets,
                        double factor, double *row_losses)
{
    for (int64_t row = 0; row < rows; row++) {
        double sum = 0.0;
        for (int64_t i = row * columns; i < (row + 1) * columns; i++) {
            double difference = (double)in[i] - (double)targets[i];
            sum += difference * difference;
            in[i] = (float)(factor * difference);
        }
        row_losses[row] = sum;
    }
}

static sl_status mse_apply(sl_loss *loss, const sl_loss_call *call)
{
    (void)loss;
    SL_TRY(check_targets(call));
    sl_status status;
    float *in = malloc(sli_tensor_bytes(call->in) + 1);
    float *targets = malloc(sli_tensor_bytes(call->targets) + 1);
    if (!in || !targets) {
        status = sli_no_memory(NULL, "a copy of the output");
        goto fail;
    }
    SL_TRY_OR_FAIL(sl_tensor_read(call->in, in));
    SL_TRY_OR_FAIL(sl_tensor_read(call->targets, targets));
    square_rows(sl_tensor_rows(call->in), sl_tensor_columns(call->in), in, targets,
                2.0 * call->scale, call->row_losses);
    if (call->grad_in) {
        SL_TRY_OR_FAIL(sl_tensor_create(call->device, SL_MEMORY_ACTIVATIONS, SL_F32,
                                        sl_tensor_shape(call->in), call->grad_in));
        status = sl_tensor_write(*call->grad_in, in);
    }

fail:
    free(in);
    free(targets);
    return status;
}

static sl_status mse_terms(const sl_loss *loss, const sl_tensor *targets, int64_t *out)
{
    (void)loss;
    *out = sl_tensor_count(targets);
    return SL_OK;
}

static int64_t mse_rows(const sl_loss *loss, const sl_tensor *targets)
{
    (void)loss;
    return sl_tensor_rows(targets);
}

static const sl_loss_ops mse_ops = {
    .type = "MSELoss",
    .apply = mse_apply,
    .terms = mse_terms,
    .rows = mse_rows,
};

sl_status sl_mse_loss_create(sl_loss **out)
{
    return sl_loss_create(&mse_ops, NULL, out);
}
