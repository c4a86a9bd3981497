/* The device's operations: arguments are checked here, once for all kinds of devices. */
#include "device/device_base.h"

#include <inttypes.h>

/* ---- Checks ----------------------------------------------------------------------------- */

/* One call of an operation; `status` is that of the first check that failed. */
typedef struct call {
    sl_device *device;
    const char *name;
    sl_status status;
} call;

static void refuse_arguments(call *c, const char *expected)
{
    if (c->status == SL_OK)
        c->status = sl_error(SL_ERR_INVALID, "%s: %s: expected %s", sl_device_name(c->device),
                             c->name, expected);
}

static void check_at_least(call *c, const char *what, int64_t least, int64_t got)
{
    if (got < least && c->status == SL_OK)
        c->status =
            sl_error(SL_ERR_INVALID, "%s: %s: %s must be at least %" PRId64 ", got %" PRId64,
                     sl_device_name(c->device), c->name, what, least, got);
}

static void check_given(call *c, const char *what, const void *pointer)
{
    if (!pointer && c->status == SL_OK)
        c->status = sl_error(SL_ERR_INVALID, "%s: %s: %s must not be NULL",
                             sl_device_name(c->device), c->name, what);
}

/* Of a matrix, f32 or bf16. */
static void check_matrix(call *c, const char *what, const float *f32, const uint16_t *bf16)
{
    if (!bf16)
        check_given(c, what, f32);
    else if (f32 || !c->device->stores_bf16)
        refuse_arguments(c, f32 ? "a matrix in f32 or in bf16" : "matrices in f32");
}

/* The rows have `columns` elements. */
static void check_dropout(call *c, const sli_dropout *dropout, int64_t columns)
{
    if (!(dropout->p >= 0 && dropout->p <= 1))
        refuse_arguments(c, "a dropout probability from 0 to 1");
    if (!(dropout->p > 0))
        return;
    check_at_least(c, "rows_per_sample", 1, dropout->rows_per_sample);
    check_at_least(c, "first_row", 0, dropout->first_row);
    if (c->status == SL_OK &&
        (columns + 3) / 4 >
            ((int64_t)1 << SLI_GROUP_BITS) / (dropout->first_row + dropout->rows_per_sample))
        refuse_arguments(c, "at most 2^42 elements of dropout a sample");
    if (dropout->site >> SLI_SITE_BITS != 0)
        refuse_arguments(c, "a dropout site below 2^24");
}

static void check_beta(call *c, float beta)
{
    if (beta != 0 && beta != 1)
        refuse_arguments(c, "a beta of 0 or 1");
}

/* ---- Memory ----------------------------------------------------------------------------- */

sl_status sli_device_copy(sl_device *device, void *to, const void *from, size_t bytes)
{
    call c = {device, "copy", SL_OK};
    if (bytes == 0)
        return SL_OK;
    check_given(&c, "to", to);
    check_given(&c, "from", from);
    return c.status == SL_OK ? device->ops->copy(device, to, from, bytes) : c.status;
}

sl_status sli_device_write(sl_device *device, void *to, const void *host, size_t bytes)
{
    call c = {device, "write", SL_OK};
    if (bytes == 0)
        return SL_OK;
    check_given(&c, "to", to);
    check_given(&c, "host", host);
    SL_TRY(c.status);
    return device->ops->write ? device->ops->write(device, to, host, bytes)
                              : device->ops->copy(device, to, host, bytes);
}

sl_status sli_device_read(sl_device *device, void *host, const void *from, size_t bytes)
{
    call c = {device, "read", SL_OK};
    if (bytes == 0)
        return SL_OK;
    check_given(&c, "host", host);
    check_given(&c, "from", from);
    SL_TRY(c.status);
    return device->ops->read ? device->ops->read(device, host, from, bytes)
                             : device->ops->copy(device, host, from, bytes);
}

sl_status sli_device_zero(sl_device *device, void *to, size_t bytes)
{
    call c = {device, "zero", SL_OK};
    if (bytes == 0)
        return SL_OK;
    check_given(&c, "to", to);
    return c.status == SL_OK ? device->ops->zero(device, to, bytes) : c.status;
}

/* ---- Products and what follows them ----------------------------------------------------- */

sl_status sli_device_gemm(sl_device *device, const sli_gemm *a)
{
    call c = {device, "gemm", SL_OK};
    check_at_least(&c, "m", 0, a->m);
    check_at_least(&c, "n", 0, a->n);
    check_at_least(&c, "k", 0, a->k);
    if (c.status != SL_OK || a->m == 0 || a->n == 0)
        return c.status;
    if (a->k > 0) {
        check_given(&c, "a", a->a);
        check_given(&c, "b", a->b);
        check_at_least(&c, "lda", a->transpose_a ? a->m : a->k, a->lda);
        check_at_least(&c, "ldb", a->transpose_b ? a->k : a->n, a->ldb);
    }
    check_given(&c, "c", a->c);
    if (a->c_bf16)
        check_matrix(&c, "c", NULL, a->c_bf16);
    if (a->is_forward && a->transpose_a)
        refuse_arguments(&c, "no transpose_a with is_forward");
    if (a->c_bf16 && a->beta != 0)
        refuse_arguments(&c, "a beta of 0 where the result is bf16");
    check_at_least(&c, "ldc", a->n, a->ldc);
    check_beta(&c, a->beta);
    check_dropout(&c, &a->dropout, a->n);
    if (c.status == SL_OK && a->tf32 && (a->bf16 || !device->has_tf32))
        return sl_error(SL_ERR_INVALID, "%s: gemm: tf32 is for f32 matrices on a GPU",
                        device->name);
    return c.status == SL_OK ? device->ops->gemm(device, a) : c.status;
}

sl_status sli_device_epilogue(sl_device *device, const sli_epilogue *a)
{
    call c = {device, "epilogue", SL_OK};
    check_at_least(&c, "rows", 0, a->rows);
    check_at_least(&c, "columns", 0, a->columns);
    if (c.status != SL_OK || a->rows == 0 || a->columns == 0)
        return c.status;
    check_given(&c, "x", a->x);
    check_given(&c, "out", a->out);
    check_dropout(&c, &a->dropout, a->columns);
    return c.status == SL_OK ? device->ops->epilogue(device, a) : c.status;
}

sl_status sli_device_epilogue_backward(sl_device *device, const sli_epilogue_backward *a)
{
    call c = {device, "epilogue_backward", SL_OK};
    check_at_least(&c, "rows", 0, a->rows);
    check_at_least(&c, "columns", 0, a->columns);
    check_at_least(&c, "ld", a->columns, a->ld);
    if (c.status != SL_OK || a->columns == 0 || (a->rows == 0 && !a->grad_bias))
        return c.status;
    if (a->rows > 0) {
        check_matrix(&c, "grad", a->grad, a->grad_bf16);
        if (a->grad_bf16 && (a->activation != SLI_ACTIVATION_NONE || a->dropout.p > 0))
            refuse_arguments(&c, "grad in f32 where it changes");
        if (a->activation != SLI_ACTIVATION_NONE)
            check_matrix(&c, "saved", a->saved, a->saved_bf16);
        if (a->result_bf16)
            check_matrix(&c, "the result", NULL, a->result_bf16);
    }
    check_beta(&c, a->beta);
    check_dropout(&c, &a->dropout, a->columns);
    return c.status == SL_OK ? device->ops->epilogue_backward(device, a) : c.status;
}

/* ---- Rows ------------------------------------------------------------------------------- */

sl_status sli_device_embedding(sl_device *device, const sli_embedding *a)
{
    call c = {device, "embedding", SL_OK};
    check_at_least(&c, "rows", 0, a->rows);
    check_at_least(&c, "width", 0, a->width);
    if (c.status != SL_OK || a->rows == 0 || a->width == 0)
        return c.status;
    check_at_least(&c, "table_rows", 1, a->table_rows);
    check_given(&c, "ids", a->ids);
    if (!a->table == !a->table_bf16)
        refuse_arguments(&c, "a table in f32 or in bf16");
    check_given(&c, "out", a->out);
    if (a->positions)
        check_at_least(&c, "rows_per_sample", 1, a->dropout.rows_per_sample);
    check_dropout(&c, &a->dropout, a->width);
    return c.status == SL_OK ? device->ops->embedding(device, a) : c.status;
}

sl_status sli_device_embedding_backward(sl_device *device, const sli_embedding_backward *a)
{
    call c = {device, "embedding_backward", SL_OK};
    check_at_least(&c, "rows", 0, a->rows);
    check_at_least(&c, "width", 0, a->width);
    if (c.status != SL_OK || a->rows == 0 || a->width == 0)
        return c.status;
    check_at_least(&c, "table_rows", 1, a->table_rows);
    check_given(&c, "ids", a->ids);
    check_given(&c, "grad_out", a->grad_out);
    check_given(&c, "grad_table", a->grad_table);
    check_dropout(&c, &a->dropout, a->width);
    return c.status == SL_OK ? device->ops->embedding_backward(device, a) : c.status;
}

/* The default of add_dropout. */
static sl_status add_after_dropout(sl_device *device, const sli_add_dropout *a)
{
    size_t bytes = (size_t)(a->rows * a->width) * sizeof(float);
    void *room = NULL;
    sli_epilogue epilogue = {
        .rows = a->rows, .columns = a->width, .x = a->x, .out = a->out, .dropout = a->dropout};
    const float *other = a->residual;
    if (other && other == a->out) {
        SL_TRY(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &room));
        other = epilogue.out = room;
    }
    sl_status status;
    SL_TRY_OR_FAIL(device->ops->epilogue(device, &epilogue));
    if (other)
        status = device->ops->add(device, a->rows * a->width, a->out, other);
fail:
    sli_device_release(device, SL_MEMORY_WORKSPACE, room, bytes);
    return status;
}

sl_status sli_device_add_dropout(sl_device *device, const sli_add_dropout *a)
{
    call c = {device, "add_dropout", SL_OK};
    check_at_least(&c, "rows", 0, a->rows);
    check_at_least(&c, "width", 0, a->width);
    if (c.status != SL_OK || a->rows == 0 || a->width == 0)
        return c.status;
    check_given(&c, "x", a->x);
    check_given(&c, "out", a->out);
    check_dropout(&c, &a->dropout, a->width);
    SL_TRY(c.status);
    return device->ops->add_dropout ? device->ops->add_dropout(device, a)
                                    : add_after_dropout(device, a);
}

/* RMSNorm has no bias, and a layer norm has one. */
static void check_bias(call *c, const char *name, bool rms, const float *bias)
{
    if (!rms)
        check_given(c, name, bias);
    else if (bias)
        refuse_arguments(c, "no bias with rms");
}

/* `has_others`: matrices that have no groups are given. */
static void check_groups(call *c, const sli_row_groups *groups, int64_t width, bool has_others,
                         const sli_dropout *dropout)
{
    if (groups->count == 0)
        return;
    check_at_least(c, "groups.count", 1, groups->count);
    check_at_least(c, "groups.ld", groups->count * width, groups->ld);
    if (has_others || dropout->p > 0)
        refuse_arguments(c, "groups of rows without residual, sum, bf16 and dropout");
}

sl_status sli_device_add_norm(sl_device *device, const sli_add_norm *a)
{
    call c = {device, "add_norm", SL_OK};
    check_at_least(&c, "rows", 0, a->rows);
    check_at_least(&c, "width", 0, a->width);
    if (c.status != SL_OK || a->rows == 0 || a->width == 0)
        return c.status;
    check_given(&c, "x", a->x);
    if (a->out_bf16)
        check_matrix(&c, "out", NULL, a->out_bf16);
    else
        check_given(&c, "out", a->out);
    check_given(&c, "weight", a->weight);
    check_bias(&c, "bias", a->rms, a->bias);
    if ((!a->normalized && !a->normalized_bf16) != !a->rstd)
        refuse_arguments(&c, "normalized and rstd together or neither");
    if (a->rstd)
        check_matrix(&c, "normalized", a->normalized, a->normalized_bf16);
    check_dropout(&c, &a->dropout, a->width);
    check_groups(&c, &a->groups, a->width, a->residual || a->sum || a->out_bf16, &a->dropout);
    return c.status == SL_OK ? device->ops->add_norm(device, a) : c.status;
}

sl_status sli_device_add_norm_backward(sl_device *device, const sli_add_norm_backward *a)
{
    call c = {device, "add_norm_backward", SL_OK};
    check_at_least(&c, "rows", 0, a->rows);
    check_at_least(&c, "width", 0, a->width);
    if (c.status != SL_OK || a->width == 0)
        return c.status;
    check_given(&c, "weight", a->weight);
    check_given(&c, "grad_weight", a->grad_weight);
    check_bias(&c, "grad_bias", a->rms, a->grad_bias);
    if (a->rows > 0) {
        check_matrix(&c, "grad_out", a->grad_out, a->grad_out_bf16);
        check_matrix(&c, "normalized", a->normalized, a->normalized_bf16);
        check_given(&c, "rstd", a->rstd);
        check_given(&c, "grad_sum", a->grad_sum);
        if (a->grad_x || a->grad_x_bf16)
            check_matrix(&c, "grad_x", a->grad_x, a->grad_x_bf16);
        if (a->grad_x == a->grad_sum && a->dropout.p > 0)
            refuse_arguments(&c, "grad_x apart from grad_sum where dropout lies between them");
    }
    check_beta(&c, a->beta);
    check_dropout(&c, &a->dropout, a->width);
    check_groups(&c, &a->groups, a->width,
                 a->grad_sum_in || a->grad_x || a->grad_x_bf16 || a->grad_out_bf16, &a->dropout);
    return c.status == SL_OK ? device->ops->add_norm_backward(device, a) : c.status;
}

sl_status sli_device_swiglu(sl_device *device, const sli_swiglu *a)
{
    call c = {device, "swiglu", SL_OK};
    check_at_least(&c, "rows", 0, a->rows);
    check_at_least(&c, "width", 0, a->width);
    if (c.status != SL_OK || a->rows == 0 || a->width == 0)
        return c.status;
    check_given(&c, "gate", a->gate);
    check_given(&c, "up", a->up);
    check_given(&c, "out", a->out);
    return c.status == SL_OK ? device->ops->swiglu(device, a) : c.status;
}

sl_status sli_device_swiglu_backward(sl_device *device, const sli_swiglu_backward *a)
{
    call c = {device, "swiglu_backward", SL_OK};
    check_at_least(&c, "rows", 0, a->rows);
    check_at_least(&c, "width", 0, a->width);
    if (c.status != SL_OK || a->rows == 0 || a->width == 0)
        return c.status;
    check_given(&c, "gate", a->gate);
    check_given(&c, "up", a->up);
    check_given(&c, "grad_out", a->grad_out);
    check_given(&c, "grad_gate", a->grad_gate);
    check_given(&c, "grad_up", a->grad_up);
    return c.status == SL_OK ? device->ops->swiglu_backward(device, a) : c.status;
}

sl_status sli_device_rotary(sl_device *device, const sli_rotary *a)
{
    call c = {device, "rotary", SL_OK};
    check_at_least(&c, "rows", 0, a->rows);
    check_at_least(&c, "heads", 0, a->heads);
    check_at_least(&c, "head_width", 2, a->head_width);
    check_at_least(&c, "ld", a->heads * a->head_width, a->ld);
    check_at_least(&c, "rows_per_sample", 1, a->rows_per_sample);
    check_at_least(&c, "first_position", 0, a->first_position);
    if (c.status == SL_OK && (a->head_width % 2 || a->head_width > 2 * SLI_ROTARY_PAIRS))
        c.status =
            sl_error(SL_ERR_INVALID, "rotary: head_width must be even and at most %d, got %" PRId64,
                     2 * SLI_ROTARY_PAIRS, a->head_width);
    if (c.status != SL_OK || a->rows == 0 || a->heads == 0)
        return c.status;
    check_given(&c, "x", a->x);
    return c.status == SL_OK ? device->ops->rotary(device, a) : c.status;
}

/* The default of cross_entropy_bias. */
static sl_status use_gradients(sl_device *device, const sli_cross_entropy *a)
{
    sli_cross_entropy in_place = *a;
    sli_epilogue_backward sums = {
        .rows = a->rows,
        .columns = a->classes,
        .ld = a->ld,
        .grad = a->logits,
        .beta = a->beta,
        .grad_bias = a->grad_bias,
    };
    sli_convert rounding = {.count = (a->rows - 1) * a->ld + a->classes,
                            .to_bf16 = true,
                            .from = a->logits,
                            .to = a->rounded};
    if (a->rounded && device->stores_bf16) {
        sums.grad = NULL;
        sums.grad_bf16 = a->rounded;
        SL_TRY(device->ops->cross_entropy(device, a));
        return a->grad_bias ? device->ops->epilogue_backward(device, &sums) : SL_OK;
    }
    in_place.rounded = NULL;
    SL_TRY(device->ops->cross_entropy(device, &in_place));
    if (a->grad_bias)
        SL_TRY(device->ops->epilogue_backward(device, &sums));
    return a->rounded ? device->ops->convert(device, &rounding) : SL_OK;
}

sl_status sli_device_cross_entropy(sl_device *device, const sli_cross_entropy *a)
{
    call c = {device, "cross_entropy", SL_OK};
    check_at_least(&c, "rows", 0, a->rows);
    check_at_least(&c, "classes", 1, a->classes);
    check_at_least(&c, "ld", a->classes, a->ld);
    if (c.status != SL_OK)
        return c.status;
    bool has_sums = a->grad_bias && a->grad_scale != 0;
    if (a->rows == 0 && has_sums && a->beta == 0)
        return sli_device_zero(device, a->grad_bias, (size_t)a->classes * sizeof(float));
    if (a->rows == 0)
        return SL_OK;
    check_given(&c, "logits", a->logits);
    check_given(&c, "targets", a->targets);
    check_given(&c, "loss", a->loss);
    if (c.status != SL_OK)
        return c.status;
    if (!has_sums && (!a->rounded || a->grad_scale == 0))
        return device->ops->cross_entropy(device, a);
    return device->ops->cross_entropy_bias ? device->ops->cross_entropy_bias(device, a)
                                           : use_gradients(device, a);
}

/* ---- Attention -------------------------------------------------------------------------- */

/* Refuses key_heads that do not divide the heads; 0 becomes as many as heads. */
static void check_key_heads(call *c, int64_t heads, int64_t *key_heads)
{
    check_at_least(c, "key_heads", 0, *key_heads);
    if (c->status == SL_OK && *key_heads && heads % *key_heads)
        refuse_arguments(c, "key_heads that divide the heads");
    if (*key_heads == 0)
        *key_heads = heads;
}

/* True where there is something to compute. */
static bool check_heads(call *c, int64_t samples, int64_t positions, int64_t heads,
                        int64_t head_width, const sli_dropout *dropout)
{
    check_at_least(c, "samples", 0, samples);
    check_at_least(c, "positions", 0, positions);
    check_at_least(c, "heads", 1, heads);
    check_at_least(c, "head_width", 1, head_width);
    check_dropout(c, dropout, positions);
    return c->status == SL_OK && samples > 0 && positions > 0;
}

/* Two matrices of heads: both bf16, which must be `possible`, or neither. */
static void check_bf16_heads(call *c, const uint16_t *first, const uint16_t *second, bool possible,
                             int64_t head_width)
{
    if (!first != !second)
        refuse_arguments(c, "all matrices in bf16 or none");
    if (first && (!possible || head_width % SLI_BF16_HEAD))
        refuse_arguments(c, "matrices in f32 for these heads");
}

/* 0 for the room becomes `positions`. Whether all positions are queries and all of the room. */
static bool check_range(call *c, int64_t first_query, int64_t positions, int64_t *room)
{
    if (*room == 0)
        *room = positions;
    check_at_least(c, "first_query", 0, first_query);
    check_at_least(c, "positions", first_query + 1, positions);
    check_at_least(c, "room", positions, *room);
    return first_query == 0 && *room == positions;
}

bool sli_device_takes_slices(const sl_device *device)
{
    return device->ops->attention_backward_from != NULL;
}

bool sli_device_takes_keys(const sl_device *device)
{
    return device->ops->attention_from != NULL;
}

sl_status sli_device_attention(sl_device *device, const sli_attention *a)
{
    call c = {device, "attention", SL_OK};
    sli_attention from = *a;
    if (!check_heads(&c, a->samples, a->positions, a->heads, a->head_width, &a->dropout))
        return c.status;
    check_key_heads(&c, a->heads, &from.key_heads);
    check_matrix(&c, "qkv", a->qkv, a->qkv_bf16);
    check_matrix(&c, "out", a->out, a->out_bf16);
    bool is_whole = check_range(&c, a->first_query, a->positions, &from.room) && !a->kv;
    check_bf16_heads(&c, a->qkv_bf16, a->out_bf16, is_whole && a->bf16, a->head_width);
    if (a->kv && !sli_device_takes_keys(device))
        refuse_arguments(&c, "keys and values in qkv");
    if (!is_whole && (a->log_sum_exp || a->dropout.p > 0) && !sli_device_takes_slices(device))
        refuse_arguments(&c, "all queries and dense samples where log_sum_exp or dropout is given");
    SL_TRY(c.status);
    if (is_whole)
        return device->ops->attention(device, &from);
    return device->ops->attention_from ? device->ops->attention_from(device, &from)
                                       : sli_attend_to_all(device, &from);
}

sl_status sli_device_attention_backward(sl_device *device, const sli_attention_backward *a)
{
    call c = {device, "attention_backward", SL_OK};
    sli_attention_backward grouped = *a;
    if (!check_heads(&c, a->samples, a->positions, a->heads, a->head_width, &a->dropout))
        return c.status;
    check_key_heads(&c, a->heads, &grouped.key_heads);
    check_matrix(&c, "qkv", a->qkv, a->qkv_bf16);
    check_matrix(&c, "out", a->out, a->out_bf16);
    check_matrix(&c, "grad_qkv", a->grad_qkv, a->grad_qkv_bf16);
    bool is_whole = check_range(&c, a->first_query, a->positions, &grouped.room) && !a->adds;
    check_bf16_heads(&c, a->qkv_bf16, a->out_bf16, is_whole && a->bf16, a->head_width);
    check_bf16_heads(&c, a->qkv_bf16, a->grad_qkv_bf16, is_whole && a->bf16, a->head_width);
    if (!is_whole && !sli_device_takes_slices(device))
        refuse_arguments(&c, "all queries and dense samples");
    check_given(&c, "log_sum_exp", a->log_sum_exp);
    check_given(&c, "grad_out", a->grad_out);
    SL_TRY(c.status);
    return is_whole ? device->ops->attention_backward(device, &grouped)
                    : device->ops->attention_backward_from(device, &grouped);
}

/* ---- Flat arrays ------------------------------------------------------------------------ */

sl_status sli_device_add(sl_device *device, int64_t count, float *to, const float *from)
{
    call c = {device, "add", SL_OK};
    check_at_least(&c, "count", 0, count);
    if (c.status != SL_OK || count == 0)
        return c.status;
    check_given(&c, "to", to);
    check_given(&c, "from", from);
    return c.status == SL_OK ? device->ops->add(device, count, to, from) : c.status;
}

sl_status sli_device_convert(sl_device *device, const sli_convert *a)
{
    call c = {device, "convert", SL_OK};
    check_at_least(&c, "count", 0, a->count);
    if (c.status != SL_OK || a->count == 0)
        return c.status;
    check_given(&c, "to", a->to);
    check_given(&c, "from", a->from);
    if (a->from_bf16 && a->to_bf16)
        refuse_arguments(&c, "f32 on one side");
    return c.status == SL_OK ? device->ops->convert(device, a) : c.status;
}

sl_status sli_device_sgd(sl_device *device, const sli_sgd *s)
{
    call c = {device, "sgd", SL_OK};
    check_at_least(&c, "count", 0, s->count);
    if (c.status != SL_OK || s->count == 0)
        return c.status;
    check_given(&c, "value", s->value);
    check_given(&c, "grad", s->grad);
    if (s->momentum != 0)
        check_given(&c, "momentum_buffer", s->momentum_buffer);
    return c.status == SL_OK ? device->ops->sgd(device, s) : c.status;
}

sl_status sli_device_adamw(sl_device *device, const sli_adamw *s)
{
    call c = {device, "adamw", SL_OK};
    check_at_least(&c, "count", 0, s->count);
    if (c.status != SL_OK || s->count == 0)
        return c.status;
    check_given(&c, "value", s->value);
    check_given(&c, "grad", s->grad);
    check_given(&c, "exp_avg", s->exp_avg);
    check_given(&c, "exp_avg_sq", s->exp_avg_sq);
    return c.status == SL_OK ? device->ops->adamw(device, s) : c.status;
}

sl_status sli_device_norm_terms(sl_device *device, const sli_norm_terms *a)
{
    call c = {device, "norm_terms", SL_OK};
    check_at_least(&c, "count", 0, a->count);
    if (c.status != SL_OK || a->count == 0)
        return c.status;
    check_given(&c, "arrays", a->arrays);
    check_given(&c, "out", a->out);
    for (int i = 0; i < a->count && c.status == SL_OK; i++) {
        check_at_least(&c, "an array's count", 0, a->arrays[i].count);
        if (a->arrays[i].count > 0)
            check_given(&c, "x", a->arrays[i].x);
    }
    return c.status == SL_OK ? device->ops->norm_terms(device, a) : c.status;
}

sl_status sli_device_initialize(sl_device *device, const sli_init *init, uint64_t seed,
                                uint32_t site, int64_t count, float *to)
{
    call c = {device, "initialize", SL_OK};
    check_at_least(&c, "count", 0, count);
    if (c.status != SL_OK || count == 0)
        return c.status;
    check_given(&c, "to", to);
    return c.status == SL_OK ? device->ops->initialize(device, init, seed, site, count, to)
                             : c.status;
}
