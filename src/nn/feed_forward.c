#include "nn/feed_forward.h"

#include "nn/pass.h"
#include "nn/shape.h"

static sl_shape hidden_shape(const sli_feed_forward *self, const sl_shape *x)
{
    return sl_shape_3d(x->size[0], x->size[1], self->linear1->out);
}

sl_status sli_feed_forward_run(const sli_feed_forward *self, sl_pass *pass, sli_dropout dropout,
                               const sl_tensor *x, sl_tensor **y)
{
    sl_shape shape = hidden_shape(self, sl_tensor_shape(x));
    sli_linear_epilogue epilogue = {.activation = self->activation, .dropout = dropout};
    bool gelu = self->activation == SLI_ACTIVATION_GELU;
    sl_tensor *h = NULL;
    *y = NULL;
    sl_status status = sli_pass_tensor(pass, &shape, &h);
    if (status == SL_OK && gelu)
        status = sli_pass_tensor_if_kept(pass, &shape, &epilogue.preactivation);
    if (status == SL_OK)
        status = sli_linear_forward(self->linear1, x, &epilogue, h);
    if (status == SL_OK)
        status = sl_pass_save_alias(pass, x);
    if (status == SL_OK && gelu)
        status = sl_pass_save(pass, &epilogue.preactivation);
    if (status == SL_OK)
        status = sl_tensor_create(sl_pass_device(pass), SL_MEMORY_WORKSPACE, SL_F32,
                                  sl_tensor_shape(x), y);
    if (status == SL_OK)
        status = sli_linear_forward(self->linear2, h, NULL, *y);
    if (status == SL_OK)
        status = sl_pass_save(pass, &h);
    sl_tensor_destroy(&h);
    sl_tensor_destroy(&epilogue.preactivation);
    if (status != SL_OK)
        sl_tensor_destroy(y);
    return status;
}

/* Back through linear2: the gradient of h, in a new tensor. */
static sl_status backward_linear2(const sli_feed_forward *self, const sl_tensor *h,
                                  sl_tensor *grad_y, sl_tensor **grad_h)
{
    SL_TRY(sli_linear_backward_epilogue(self->linear2, NULL, NULL, grad_y));
    SL_TRY(sli_linear_backward_weight(self->linear2, grad_y, h));
    SL_TRY(sl_tensor_create(sl_tensor_device(h), SL_MEMORY_WORKSPACE, SL_F32, sl_tensor_shape(h),
                            grad_h));
    return sli_linear_backward_input(self->linear2, grad_y, 0.0f, *grad_h);
}

sl_status sli_feed_forward_backward(const sli_feed_forward *self, sl_pass *pass,
                                    sli_dropout dropout, sl_tensor **grad_y, float beta,
                                    sl_tensor *grad_x)
{
    sli_linear_epilogue epilogue = {.activation = self->activation, .dropout = dropout};
    sl_tensor *h = NULL, *pre = NULL, *x = NULL, *grad_h = NULL;
    sl_status status = sl_pass_pop(pass, &h);
    if (status == SL_OK && self->activation == SLI_ACTIVATION_GELU)
        status = sl_pass_pop(pass, &pre);
    if (status == SL_OK)
        status = backward_linear2(self, h, *grad_y, &grad_h);
    sl_tensor_destroy(grad_y);
    if (status == SL_OK)
        status = sli_linear_backward_epilogue(self->linear1, &epilogue, pre ? pre : h, grad_h);
    sl_tensor_destroy(&h);
    sl_tensor_destroy(&pre);
    if (status == SL_OK)
        status = sl_pass_pop(pass, &x);
    if (status == SL_OK)
        status = sli_linear_backward_weight(self->linear1, grad_h, x);
    sl_tensor_destroy(&x);
    if (status == SL_OK)
        status = sli_linear_backward_input(self->linear1, grad_h, beta, grad_x);
    sl_tensor_destroy(&grad_h);
    return status;
}

int64_t sli_feed_forward_saved_bytes(const sli_feed_forward *self, const sl_shape *x)
{
    sl_shape hidden = hidden_shape(self, x);
    int64_t hiddens = self->activation == SLI_ACTIVATION_GELU ? 2 : 1;
    return (sl_shape_count(x) + hiddens * sl_shape_count(&hidden)) * (int64_t)sizeof(float);
}
