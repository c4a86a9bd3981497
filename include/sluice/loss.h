/* Losses: the end of the last stage.
 *
 * A loss gives its value and its gradient in one call, so that what lies between (a micro-batch's
 * logits) never has to be kept. One that can take over the model's last module (cross entropy
 * after a linear layer) works through it in panels of some hundred rows: logits, loss, gradient of
 * the layer's input, weights and bias, panel after panel. */
#ifndef SLUICE_LOSS_H
#define SLUICE_LOSS_H

#include "sluice/module.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_loss sl_loss;

/* One micro-batch's share of the loss. */
typedef struct sl_loss_call {
    sl_device *device;
    sl_module *last;          /* the module taken over, NULL if none */
    const sl_tensor *in;      /* the last module's output; its input where it is taken over */
    const sl_tensor *targets; /* this micro-batch's */
    double scale;             /* gradients are of scale * (sum of the terms) */
    double *row_losses;       /* gets sl_loss_rows numbers: each row's sum of terms */
    sl_tensor **grad_in;      /* gets the gradient of `in`; NULL: values only */
    sl_pass *pass;            /* where the weights' half of `last` is deferred to, for
                                 sl_loss_backward_weight; NULL: it runs at once */
} sl_loss_call;

typedef struct sl_loss_ops {
    const char *type;
    sl_status (*apply)(sl_loss *loss, const sl_loss_call *call);
    /* How many terms the mean is over: the scale of a batch is 1 / (terms of all its rows). */
    sl_status (*terms)(const sl_loss *loss, const sl_tensor *targets, int64_t *out);
    /* How many row_losses a micro-batch with these targets has. */
    int64_t (*rows)(const sl_loss *loss, const sl_tensor *targets);
    /* (optional: never) Can `apply` take over this module? */
    bool (*takes_over)(const sl_loss *loss, const sl_module *last);
    /* (optional: `apply` adds to the gradients of `last` at once) Adds to the gradients of a module
     * that was taken over, from what `apply` has deferred on call->pass. */
    sl_status (*backward_weight)(sl_loss *loss, sl_module *last, sl_pass *pass);
    /* (optional: 0) Bytes that `apply` defers for an input of this shape. */
    int64_t (*deferred_bytes)(const sl_loss *loss, const sl_module *last, const sl_shape *in);
    /* (optional: free) */
    void (*destroy_state)(void *state);
} sl_loss_ops;

sl_status sl_loss_create(const sl_loss_ops *ops, void *state, sl_loss **out); /* takes state */
void sl_loss_destroy(sl_loss **loss);
void *sl_loss_state(const sl_loss *loss);

sl_status sl_loss_apply(sl_loss *loss, const sl_loss_call *call);
sl_status sl_loss_terms(const sl_loss *loss, const sl_tensor *targets, int64_t *out);
int64_t sl_loss_rows(const sl_loss *loss, const sl_tensor *targets);
/* The weights' half of the module that the loss has taken over; see sl_loss_call.pass. */
sl_status sl_loss_backward_weight(sl_loss *loss, sl_module *last, sl_pass *pass);
int64_t sl_loss_deferred_bytes(const sl_loss *loss, const sl_module *last, const sl_shape *in);
bool sl_loss_takes_over(const sl_loss *loss, const sl_module *last);

/* torch.nn.CrossEntropyLoss(ignore_index=-100), mean: in f32 [..., classes], targets i32 [...].
 * Takes over linear layers and decoders. A target out of range is an error that names it. */
sl_status sl_cross_entropy_create(sl_loss **out);

/* torch.nn.MSELoss, mean over all elements: in and targets f32 of one shape. */
sl_status sl_mse_loss_create(sl_loss **out);

#ifdef __cplusplus
}
#endif
#endif
