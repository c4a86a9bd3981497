/* The toy model of PyTorch's DDP tutorial, and rows of random numbers for it. */
#ifndef TOY_MODEL_H
#define TOY_MODEL_H

#include <sluice/sluice.h>

enum { TOY_ROWS = 20, TOY_IN = 10, TOY_OUT = 5 };

/* Linear(10, 10), ReLU, Linear(10, 5). */
static inline sl_status toy_model_create(sl_module **out)
{
    sl_module *layer;
    *out = NULL;
    SL_TRY(sl_sequential_append(out, sl_linear_create(TOY_IN, 10, false, &layer), &layer));
    SL_TRY(sl_sequential_append(out, sl_activation_create(SL_ACTIVATION_RELU, &layer), &layer));
    return sl_sequential_append(out, sl_linear_create(10, TOY_OUT, false, &layer), &layer);
}

/* The model and its loss, for sl_training_create. */
static inline sl_status toy_create(void *context, sl_module **model, sl_loss **loss)
{
    (void)context;
    SL_TRY(toy_model_create(model));
    return sl_mse_loss_create(loss);
}

/* Numbers in [-1, 1): a function of the seed. */
static inline void toy_fill(sl_tensor *rows, uint32_t seed)
{
    for (int64_t i = 0; i < sl_tensor_count(rows); i++) {
        seed = seed * 1664525u + 1013904223u;
        sl_tensor_f32(rows)[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
}

#endif
