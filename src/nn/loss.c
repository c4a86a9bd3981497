/* Losses: a table of functions and its state. */
#include "sluice/loss.h"

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
        return sl_error(SL_ERR_MEMORY, "sl_loss_create: no memory for a %s", ops->type);
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

sl_status sl_loss_apply(sl_loss *loss, const sl_loss_call *call)
{
    if (call->grad_in)
        *call->grad_in = NULL;
    sl_status status;
    if (call->last && !sl_loss_takes_over(loss, call->last))
        status = sl_error(SL_ERR_INVALID, "cannot take over a %s", sl_module_type(call->last));
    else
        status = loss->ops->apply(loss, call);
    return sl_error_context(status, "%s: ", loss->ops->type);
}

sl_status sl_loss_terms(const sl_loss *loss, const sl_tensor *targets, int64_t *out)
{
    *out = 0;
    return sl_error_context(loss->ops->terms(loss, targets, out), "%s: ", loss->ops->type);
}

int64_t sl_loss_rows(const sl_loss *loss, const sl_tensor *targets)
{
    return loss->ops->rows(loss, targets);
}

bool sl_loss_takes_over(const sl_loss *loss, const sl_module *last)
{
    return loss->ops->takes_over && loss->ops->takes_over(loss, last);
}
