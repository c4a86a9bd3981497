/* Losses: the end of the last stage.
 *
 * One call computes a loss and its gradient, so nothing between the two (a micro-batch's logits)
 * has to be kept. A loss may take over the model's last module: cross entropy takes over a linear
 * layer and works in panels of some hundred rows. For each panel it computes logits, loss, and the
 * gradients of the layer's input, weight and bias. */
#ifndef SLUICE_LOSS_H
#define SLUICE_LOSS_H

#include "sluice/module.h"

SL_API_BEGIN

typedef struct sl_loss sl_loss;

/* The loss of one micro-batch. */
typedef struct sl_loss_call {
    sl_device *device;
    sl_module *last;     /* the module to take over; NULL: none */
    const sl_tensor *in; /* f32: the last module's output; with `last`, its input, f32 or bf16 */
    const sl_tensor *targets; /* this micro-batch's */
    double scale;             /* gradients are of scale * (sum of the terms) */
    double *row_losses;       /* [rows of sl_loss_ops] set to each row's sum of terms */
    sl_tensor **grad_in;      /* set to the gradient of `in`, the caller's; NULL: not needed */
    sl_pass *pass;            /* `last` leaves the gradients of its weights to the loss's
                                 backward_weight on this pass; NULL: computes them at once */
} sl_loss_call;

typedef struct sl_loss_ops {
    const char *type;
    /* After an error the caller destroys *call->grad_in, if it is there. */
    sl_status (*apply)(sl_loss *loss, const sl_loss_call *call);
    /* How many terms these targets add to the mean. The scale of a batch is 1 / its terms. */
    sl_status (*terms)(const sl_loss *loss, const sl_tensor *targets, int64_t *out);
    /* The number of row_losses of a micro-batch with these targets. */
    int64_t (*rows)(const sl_loss *loss, const sl_tensor *targets);
    /* (optional: never) Can `apply` take over this module? */
    bool (*takes_over)(const sl_loss *loss, const sl_module *last);
    /* (optional: `apply` adds to the gradients of `last` at once) Adds to the gradients of a module
     * that was taken over, from what `apply` has deferred on call->pass. */
    sl_status (*backward_weight)(sl_loss *loss, sl_module *last, sl_pass *pass);
    /* (optional: free) */
    void (*destroy_state)(void *state);
} sl_loss_ops;

/* A loss of your own. `ops` must outlive it. Takes `state`, also when it fails. */
sl_status sl_loss_create(const sl_loss_ops *ops, void *state, sl_loss **out);
void sl_loss_destroy(sl_loss **loss);
void *sl_loss_state(const sl_loss *loss);

/* Run the slots of the table. An error's text begins with the loss's type. */
sl_status sl_loss_apply(sl_loss *loss, const sl_loss_call *call);
sl_status sl_loss_terms(const sl_loss *loss, const sl_tensor *targets, int64_t *out);

/* torch.nn.CrossEntropyLoss(ignore_index=-100), mean: in f32 [..., classes], targets i32 [...].
 * Takes over linear layers and decoders. Errors: SL_ERR_INVALID for a target out of range, which
 * the error names with its row. */
sl_status sl_cross_entropy_create(sl_loss **out);

/* torch.nn.MSELoss, mean over all elements: in and targets f32 of one shape. */
sl_status sl_mse_loss_create(sl_loss **out);

SL_API_END

#endif
