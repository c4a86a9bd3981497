/* Cross entropy, alone or taking over the linear layer before it.
 *
 * Taking over, it works in panels of rows, so that a micro-batch's logits are never held at once:
 *
 *   for each panel of rows of `in` [rows, D]
 *       for each strip of the panel
 *           logits = in W^T + b                   [strip, V]
 *           loss, and dlogits, db += its column sums (kernel)
 *       dW += dlogits^T in,  grad_in's panel = dlogits W
 *
 * In f32, dlogits replaces the logits, and a panel is one strip. For bf16 products, dlogits is a
 * bf16 matrix of its own: its panels are higher, so dW is read and written less often.
 *
 * Where backward_weight runs later, the gradient of all logits is deferred to it.
 *
 * The heights follow from the shapes and the kind of device alone. They are what so many bytes of
 * dlogits or logits give, but high enough for the products to run well, and the panels of one call
 * are about equal. On a GPU, whose memory for dW is read and written faster than its cores compute,
 * but not much, they are higher than a CPU's caches want, and of whole tiles of its products. */
#include "nn/layers.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include "nn/loss.h"

#include <inttypes.h>

static const sl_loss_ops cross_entropy_ops;

enum {
    IGNORE_INDEX = -100,
    PANEL_BYTES = 64 << 20,
    PANEL_BYTES_OF_GPU = 256 << 20,
    PANEL_LEAST_ROWS = 128,
    TILE = 64, /* rows and columns of a GPU's fastest products are multiples of it */
};

static int64_t whole_tiles(int64_t count)
{
    return (count + TILE - 1) / TILE * TILE;
}

/* Even ranges of rows, each of at most a panel's bytes. */
static int64_t even_rows(int64_t rows, int64_t row_bytes, bool on_host)
{
    int64_t most = (on_host ? PANEL_BYTES : PANEL_BYTES_OF_GPU) / row_bytes;
    if (most < PANEL_LEAST_ROWS)
        most = PANEL_LEAST_ROWS;
    if (!on_host)
        most -= most % TILE;
    int64_t panels = (rows + most - 1) / most;
    int64_t even = panels > 0 ? (rows + panels - 1) / panels : 0;
    return on_host || panels < 2 ? even : whole_tiles(even);
}

static int64_t panel_rows(int64_t rows, int64_t classes, bool bf16, bool on_host)
{
    return even_rows(rows, classes * (int64_t)(bf16 ? sizeof(uint16_t) : sizeof(float)), on_host);
}

static int64_t strip_rows(int64_t rows, int64_t classes, bool on_host)
{
    return even_rows(rows, classes * (int64_t)sizeof(float), on_host);
}

int64_t sli_cross_entropy_workspace_bytes(int64_t rows, int64_t classes, sl_precision precision,
                                          bool on_host)
{
    bool bf16 = precision == SL_PRECISION_BF16;
    int64_t panel = panel_rows(rows, classes, bf16, on_host);
    int64_t strip = strip_rows(panel, classes, on_host);
    int64_t gradient = bf16 ? panel * (int64_t)sizeof(uint16_t) : 0;
    return (strip * (int64_t)sizeof(float) + gradient) * classes;
}

/* ---- Targets ---------------------------------------------------------------------------- */

/* Targets are read block by block into the caller's stack, so no memory has to be allocated. */
enum { TARGETS_BLOCK = 1024 };

/* Reads a block of targets from `first` on; *count is how many there are in it. */
static sl_status read_targets(const sl_tensor *targets, int64_t first, int32_t host[TARGETS_BLOCK],
                              int64_t *count)
{
    int64_t left = sl_tensor_count(targets) - first;
    *count = left < TARGETS_BLOCK ? left : TARGETS_BLOCK;
    return sli_device_read(sl_tensor_device(targets), host, sl_tensor_i32(targets) + first,
                           (size_t)*count * sizeof *host);
}

static sl_status check_target_values(const sl_tensor *targets, int64_t classes)
{
    int32_t host[TARGETS_BLOCK];
    if (sli_tensor_is_below(targets, classes))
        return SL_OK;
    for (int64_t first = 0, count; first < sl_tensor_count(targets); first += count) {
        SL_TRY(read_targets(targets, first, host, &count));
        for (int64_t i = 0; i < count; i++)
            if (host[i] != IGNORE_INDEX && (host[i] < 0 || host[i] >= classes))
                return sl_error(SL_ERR_INVALID,
                                "target %" PRId32 " at row %" PRId64 " is not in 0 .. %" PRId64,
                                host[i], first + i, classes - 1);
    }
    return SL_OK;
}

static sl_status check_shapes(const sl_loss_call *call, const sli_linear *last)
{
    if (!last || sl_tensor_dtype(call->in) != SL_BF16)
        SL_TRY(sli_check_dtype("the input", call->in, SL_F32));
    SL_TRY(sli_check_dtype("the target", call->targets, SL_I32));
    const sl_shape *in = sl_tensor_shape(call->in), *targets = sl_tensor_shape(call->targets);
    char in_text[SL_SHAPE_TEXT_BYTES], target_text[SL_SHAPE_TEXT_BYTES];
    sl_shape rows = *in;
    rows.dims = in->dims - 1;
    if (in->dims < 1 || in->size[in->dims - 1] < 1 || !sl_shape_equal(&rows, targets))
        return sl_error(SL_ERR_INVALID,
                        "one target for each row of the input is needed, got shapes %s and %s",
                        sl_shape_text(targets, target_text), sl_shape_text(in, in_text));
    if (last)
        SL_TRY(sli_shape_check_width(in, 1, last->in));
    return SL_OK;
}

static sl_status check_call(const sl_loss_call *call, const sli_linear *last)
{
    SL_TRY(check_shapes(call, last));
    return check_target_values(call->targets, last ? last->out : sl_tensor_columns(call->in));
}

sl_status sli_cross_entropy_check_targets(const sl_tensor *targets, const sl_tensor *in,
                                          const sli_linear *last)
{
    const sl_loss_call call = {.in = in, .targets = targets};
    return sl_error_context(check_call(&call, last), "%s: ", cross_entropy_ops.type);
}

/* ---- The loss of some rows -------------------------------------------------------------- */

/* The losses of the call's rows from `first` on, of the first `classes` columns of their logits.
 * With `gradient`, the logits' gradient goes to `rounded`, or replaces the logits where `rounded`
 * is NULL, and is added to that of `bias`, which may be NULL. */
static sl_status run_kernel(const sl_loss_call *call, int64_t first, int64_t classes,
                            const sl_tensor *logits, bool gradient, const sl_tensor *rounded,
                            sl_parameter *bias)
{
    sli_cross_entropy arguments = {
        .rows = sl_tensor_rows(logits),
        .classes = classes,
        .ld = sl_tensor_columns(logits),
        .logits = sl_tensor_f32(logits),
        .targets = sl_tensor_i32(call->targets) + first,
        .ignore = IGNORE_INDEX,
        .grad_scale = gradient ? (float)call->scale : 0.0f,
        .loss = call->row_losses + first,
        .rounded = rounded ? sl_tensor_data(rounded) : NULL,
    };
    if (gradient && bias && sli_parameter_is_trained(bias))
        SL_TRY(sli_parameter_gradient(bias, &arguments.beta, &arguments.grad_bias));
    SL_TRY(sli_device_cross_entropy(call->device, &arguments));
    if (!gradient || arguments.grad_scale != 0.0f)
        return SL_OK;
    /* To the kernel, a scale of 0 means no gradient. */
    if (arguments.grad_bias && arguments.beta == 0)
        SL_TRY(sli_device_zero(call->device, arguments.grad_bias,
                               (size_t)arguments.classes * sizeof(float)));
    const sl_tensor *zeros = rounded ? rounded : logits;
    return sli_device_zero(call->device, sl_tensor_data(zeros), sli_tensor_bytes(zeros));
}

static sl_status apply_to_logits(const sl_loss_call *call)
{
    int64_t classes = sl_tensor_columns(call->in);
    if (!call->grad_in)
        return run_kernel(call, 0, classes, call->in, false, NULL, NULL);
    SL_TRY(sl_tensor_create(call->device, SL_MEMORY_ACTIVATIONS, SL_F32, sl_tensor_shape(call->in),
                            call->grad_in));
    SL_TRY(sl_tensor_copy(*call->grad_in, call->in));
    return run_kernel(call, 0, classes, *call->grad_in, true, NULL, NULL);
}

/* ---- Taking over a linear layer --------------------------------------------------------- */

static sl_status view_rows(const sl_tensor *tensor, int64_t first, int64_t rows, sl_tensor **view)
{
    int64_t columns = sl_tensor_columns(tensor);
    sl_shape shape = sl_shape_2d(rows, columns);
    return sl_tensor_view(tensor, first * columns, &shape, view);
}

/* Columns of a matrix of logits; those behind the classes are not used. */
static int64_t row_columns(const sl_device *device, int64_t classes)
{
    return sl_device_has_host_memory(device) ? classes : whole_tiles(classes);
}

/* Room for the logits of a strip, and for a panel's gradient where that is another matrix. What is
 * deferred to backward_weight has the rows of all panels. */
typedef struct panel_room {
    int64_t step;       /* a panel's rows */
    sl_tensor *logits;  /* [rows, row_columns(V)] */
    sl_tensor *rounded; /* [rows, row_columns(V)] bf16; NULL: the gradient replaces the logits */
} panel_room;

static void room_clear(panel_room *room)
{
    sl_tensor_destroy(&room->logits);
    sl_tensor_destroy(&room->rounded);
}

static sl_status create_matrix(const sl_loss_call *call, sl_dtype dtype, int64_t step,
                               int64_t classes, bool is_deferred, sl_tensor **out)
{
    sl_shape shape = sl_shape_2d(is_deferred ? sl_tensor_rows(call->in) : step,
                                 row_columns(call->device, classes));
    return sl_tensor_create(call->device, is_deferred ? SL_MEMORY_ACTIVATIONS : SL_MEMORY_WORKSPACE,
                            dtype, &shape, out);
}

static sl_status create_room(const sl_loss_call *call, const sli_linear *last, panel_room *out)
{
    bool has_rounded = last->weight->bf16 && call->grad_in;
    bool on_host = sl_device_has_host_memory(call->device);
    *out =
        (panel_room){.step = panel_rows(sl_tensor_rows(call->in), last->out, has_rounded, on_host)};
    SL_TRY(create_matrix(call, SL_F32, strip_rows(out->step, last->out, on_host), last->out,
                         call->pass && !has_rounded, &out->logits));
    if (!has_rounded)
        return SL_OK;
    return create_matrix(call, SL_BF16, out->step, last->out, call->pass != NULL, &out->rounded);
}

/* The rows first … of the call, whose gradient is `rounded`, or replaces `logits`. */
static sl_status apply_to_strip(const sl_loss_call *call, const sli_linear *last, int64_t first,
                                sl_tensor *logits, const sl_tensor *rounded)
{
    sl_tensor *in;
    SL_TRY(view_rows(call->in, first, sl_tensor_rows(logits), &in));
    sl_status status = sli_linear_forward(last, NULL, in, NULL, logits);
    sl_tensor_destroy(&in);
    SL_TRY(status);
    return run_kernel(call, first, last->out, logits, call->grad_in != NULL, rounded, last->bias);
}

/* The panel from row `first` of the call on, strip by strip. */
static sl_status apply_to_strips(const sl_loss_call *call, const sli_linear *last, int64_t first,
                                 const panel_room *room, const sl_tensor *rounded)
{
    int64_t rows = sl_tensor_rows(rounded);
    int64_t step = strip_rows(room->step, last->out, sl_device_has_host_memory(call->device));
    for (int64_t done = 0; done < rows; done += step) {
        int64_t count = step < rows - done ? step : rows - done;
        sl_tensor *logits = NULL, *gradient = NULL;
        sl_status status;
        SL_TRY_OR_FAIL(view_rows(room->logits, 0, count, &logits));
        SL_TRY_OR_FAIL(view_rows(rounded, done, count, &gradient));
        status = apply_to_strip(call, last, first + done, logits, gradient);

    fail:
        sl_tensor_destroy(&logits);
        sl_tensor_destroy(&gradient);
        SL_TRY(status);
    }
    return SL_OK;
}

static sl_status panel_backward(const sl_loss_call *call, const sli_linear *last, int64_t first,
                                const sl_tensor *dlogits)
{
    sl_tensor *in = NULL, *grad_in = NULL;
    int64_t rows = sl_tensor_rows(dlogits);
    sl_status status;
    SL_TRY_OR_FAIL(view_rows(*call->grad_in, first, rows, &grad_in));
    SL_TRY_OR_FAIL(view_rows(call->in, first, rows, &in));
    if (!call->pass)
        SL_TRY_OR_FAIL(sli_linear_add_weight(last, NULL, dlogits, in));
    status = sli_linear_backward_input(last, NULL, dlogits, 0.0f, grad_in);

fail:
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&grad_in);
    return status;
}

/* The panel of `rows` rows from `first` on. */
static sl_status apply_to_panel(const sl_loss_call *call, const sli_linear *last, int64_t first,
                                int64_t rows, const panel_room *room)
{
    sl_tensor *panel;
    SL_TRY(view_rows(room->rounded ? room->rounded : room->logits, call->pass ? first : 0, rows,
                     &panel));
    sl_status status;
    SL_TRY_OR_FAIL(room->rounded ? apply_to_strips(call, last, first, room, panel)
                                 : apply_to_strip(call, last, first, panel, NULL));
    if (call->grad_in)
        status = panel_backward(call, last, first, panel);
fail:
    sl_tensor_destroy(&panel);
    return status;
}

static sl_status apply_to_panels(const sl_loss_call *call, const sli_linear *last,
                                 const panel_room *room)
{
    int64_t rows = sl_tensor_rows(call->in), step = room->step;
    for (int64_t first = 0; first < rows; first += step)
        SL_TRY(apply_to_panel(call, last, first, step < rows - first ? step : rows - first, room));
    return SL_OK;
}

static sl_status run_panels(const sl_loss_call *call, const sli_linear *last, panel_room *room)
{
    SL_TRY(create_room(call, last, room));
    if (call->grad_in) {
        bool is_final = sl_tensor_dtype(call->in) == SL_F32;
        SL_TRY(sl_tensor_create(call->device,
                                is_final ? SL_MEMORY_ACTIVATIONS : SL_MEMORY_WORKSPACE, SL_F32,
                                sl_tensor_shape(call->in), call->grad_in));
    }
    SL_TRY(apply_to_panels(call, last, room));
    if (!call->pass)
        return SL_OK;
    SL_TRY(sl_pass_defer(call->pass, room->rounded ? &room->rounded : &room->logits));
    return sl_pass_defer_alias(call->pass, call->in);
}

static sl_status apply_with_linear(const sl_loss_call *call, const sli_linear *last)
{
    panel_room room = {0};
    sl_status status = run_panels(call, last, &room);
    room_clear(&room);
    return status;
}

/* backward_weight's products in the same panels, so that their sum is the same. */
static sl_status add_panels(const sli_linear *last, const sl_tensor *dlogits, const sl_tensor *in)
{
    bool on_host = sl_device_has_host_memory(sl_tensor_device(in));
    int64_t rows = sl_tensor_rows(in);
    int64_t step = panel_rows(rows, last->out, last->weight->bf16, on_host);
    sl_tensor *panel_grad = NULL, *panel_in = NULL;
    sl_status status = SL_OK;
    for (int64_t first = 0; first < rows; first += step) {
        int64_t count = step < rows - first ? step : rows - first;
        SL_TRY_OR_FAIL(view_rows(dlogits, first, count, &panel_grad));
        SL_TRY_OR_FAIL(view_rows(in, first, count, &panel_in));
        SL_TRY_OR_FAIL(sli_linear_add_weight(last, NULL, panel_grad, panel_in));
        sl_tensor_destroy(&panel_grad);
        sl_tensor_destroy(&panel_in);
    }

fail:
    sl_tensor_destroy(&panel_grad);
    sl_tensor_destroy(&panel_in);
    return status;
}

/* ---- The loss --------------------------------------------------------------------------- */

/* Runs the kernels, whose rows' losses the host reads once, behind all of them. */
static sl_status apply_kernels(const sl_loss_call *call, const sli_linear *last)
{
    sl_loss_call kernels = *call;
    size_t bytes = (size_t)sl_tensor_count(call->targets) * sizeof(double);
    void *losses = NULL;
    if (last && !sli_parameter_is_trained(last->weight))
        kernels.pass = NULL; /* backward_weight needs nothing */
    if (!sl_device_has_host_memory(call->device)) {
        SL_TRY(sli_device_allocate(call->device, SL_MEMORY_WORKSPACE, bytes, &losses));
        kernels.row_losses = losses;
    }
    sl_status status;
    SL_TRY_OR_FAIL(last ? apply_with_linear(&kernels, last) : apply_to_logits(&kernels));
    if (losses)
        status = sli_device_read(call->device, call->row_losses, losses, bytes);
fail:
    sli_device_release(call->device, SL_MEMORY_WORKSPACE, losses, bytes);
    return status;
}

static sl_status cross_entropy_apply(sl_loss *loss, const sl_loss_call *call)
{
    (void)loss;
    const sli_linear *last = call->last ? sli_module_as_linear(call->last) : NULL;
    SL_TRY(check_call(call, last));
    return apply_kernels(call, last);
}

static sl_status cross_entropy_backward_weight(sl_loss *loss, sl_module *last, sl_pass *pass)
{
    (void)loss;
    sl_tensor *dlogits, *in;
    if (!sli_parameter_is_trained(sli_module_as_linear(last)->weight))
        return SL_OK;
    SL_TRY(sli_pass_take_pair(pass, &dlogits, &in));
    sl_status status = add_panels(sli_module_as_linear(last), dlogits, in);
    sl_tensor_destroy(&dlogits);
    sl_tensor_destroy(&in);
    return status;
}

/* Every target that is not ignored. */
static sl_status cross_entropy_terms(const sl_loss *loss, const sl_tensor *targets, int64_t *out)
{
    (void)loss;
    int32_t host[TARGETS_BLOCK];
    *out = sl_tensor_count(targets);
    if (sli_tensor_is_below(targets, INT32_MAX))
        return SL_OK;
    *out = 0;
    for (int64_t first = 0, count; first < sl_tensor_count(targets); first += count) {
        SL_TRY(read_targets(targets, first, host, &count));
        for (int64_t i = 0; i < count; i++)
            *out += host[i] != IGNORE_INDEX;
    }
    return SL_OK;
}

static int64_t cross_entropy_rows(const sl_loss *loss, const sl_tensor *targets)
{
    (void)loss;
    return sl_tensor_count(targets);
}

static bool cross_entropy_takes_over(const sl_loss *loss, const sl_module *last)
{
    (void)loss;
    return sli_module_as_linear(last) != NULL;
}

static const sl_loss_ops cross_entropy_ops = {
    .type = "CrossEntropyLoss",
    .apply = cross_entropy_apply,
    .terms = cross_entropy_terms,
    .rows = cross_entropy_rows,
    .takes_over = cross_entropy_takes_over,
    .backward_weight = cross_entropy_backward_weight,
};

sl_status sl_cross_entropy_create(sl_loss **out)
{
    return sl_loss_create(&cross_entropy_ops, NULL, out);
}

bool sli_loss_is_cross_entropy(const sl_loss *loss)
{
    return sli_loss_ops(loss) == &cross_entropy_ops;
}
