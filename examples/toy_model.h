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

/* [20, width] numbers in [-1, 1): a function of the seed. */
static inline sl_status toy_rows(sl_device *device, int64_t width, uint32_t seed, sl_tensor **out)
{
    sl_shape shape = sl_shape_2d(TOY_ROWS, width);
    SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, out));
    for (int64_t i = 0; i < TOY_ROWS * width; i++) {
        seed = seed * 1664525u + 1013904223u;
        sl_tensor_f32(*out)[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
    return SL_OK;
}

#endif
