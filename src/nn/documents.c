/* Rows that several documents share, one behind the other: each is attended to alone, and its
 * positions begin anew. A document lies together in its row, so that it is what a kernel takes for
 * a sample of its own:
 *
 *     row n   a a a a a b b c c c c -    numbers 0 1 2 3 4 0 1 0 1 2 3 0
 *             |-------| |-| |-----|
 *
 * Pairs of positions in different documents cost nothing. */
#include "core/dtype.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- Reading ---------------------------------------------------------------------------- */

/* Where documents begin is where numbers are 0; the others count up. */
static sl_status find_documents(const int32_t *numbers, sli_documents *out)
{
    for (int64_t i = 0; i < out->samples * out->positions; i++) {
        int64_t position = i % out->positions;
        if (numbers[i] == 0)
            out->all[out->count++] = (sli_document){i / out->positions, i, 0};
        else if (position == 0 || numbers[i] != numbers[i - 1] + 1)
            return sl_error(SL_ERR_INVALID,
                            "input \"%s\" must begin each row with 0 and count up, or begin anew "
                            "with 0, got %" PRId32 " at [%" PRId64 ", %" PRId64 "]",
                            SL_DOCUMENTS_INPUT, numbers[i], i / out->positions, position);
        out->all[out->count - 1].length++;
    }
    return SL_OK;
}

static sl_status read_numbers(const sl_tensor *numbers, sli_documents *out)
{
    sli_host_array array;
    SL_TRY(sli_tensor_open_host((sl_tensor *)numbers, true, &array));
    sl_status status = find_documents(array.host, out);
    sli_host_array_close(&array, false);
    return status;
}

sl_status sli_documents_read(const sl_tensor *numbers, sli_documents **out)
{
    const sl_shape *shape = sl_tensor_shape(numbers);
    char text[SL_SHAPE_TEXT_BYTES];
    *out = NULL;
    if (shape->dims != 2 || sl_tensor_dtype(numbers) != SL_I32)
        return sl_error(SL_ERR_INVALID, "input \"%s\" must be i32 [N, T], got %s %s",
                        SL_DOCUMENTS_INPUT, sli_dtype_name(sl_tensor_dtype(numbers)),
                        sl_shape_text(shape, text));
    *out = calloc(1, sizeof **out + (size_t)sl_shape_count(shape) * sizeof *(*out)->all);
    if (!*out)
        return sli_no_memory(NULL, "the documents of %s positions", sl_shape_text(shape, text));
    (*out)->samples = shape->size[0];
    (*out)->positions = shape->size[1];
    sl_status status;
    SL_TRY_OR_FAIL(read_numbers(numbers, *out));
    return SL_OK;
fail:
    free(*out);
    *out = NULL;
    return status;
}

/* ---- Running ---------------------------------------------------------------------------- */

static sl_status check_rows(const sli_documents *documents, int64_t samples, int64_t positions)
{
    if (samples == documents->samples && positions == documents->positions)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "input \"%s\" is of %" PRId64 " rows of %" PRId64 " positions, but these are "
                    "%" PRId64 " of %" PRId64,
                    SL_DOCUMENTS_INPUT, documents->samples, documents->positions, samples,
                    positions);
}

/* The random numbers of a document are its own: a sample's, as it were, of a number that no other
 * has. Multiples of 2^32 / the golden ratio lie far apart. */
static sli_dropout dropout_of(const sli_dropout *rows, const sli_document *document,
                              int64_t positions, int64_t rows_per_position)
{
    sli_dropout own = *rows;
    uint32_t sample = rows->first_sample + (uint32_t)document->sample;
    own.first_sample = sample * UINT32_C(2654435769) + (uint32_t)(document->first % positions);
    own.rows_per_sample = document->length * rows_per_position;
    return own;
}

/* Moves a pointer that is not NULL. */
#define MOVE(pointer, elements) ((pointer) = (pointer) ? (pointer) + (elements) : NULL)

/* Makes the arguments `own` of all rows those of one of their documents; `qkv_ld`, `out_ld`: the
 * elements of a position in qkv and out. */
#define NARROW(own, documents, document, qkv_ld, out_ld)                                           \
    do {                                                                                           \
        (own).samples = 1;                                                                         \
        (own).positions = (document)->length;                                                      \
        (own).room = 0;                                                                            \
        MOVE((own).qkv, (document)->first *(qkv_ld));                                              \
        MOVE((own).qkv_bf16, (document)->first *(qkv_ld));                                         \
        MOVE((own).out, (document)->first *(out_ld));                                              \
        MOVE((own).out_bf16, (document)->first *(out_ld));                                         \
        MOVE((own).log_sum_exp, (document)->first *(own).heads);                                   \
        (own).dropout =                                                                            \
            dropout_of(&(own).dropout, (document), (documents)->positions, (own).heads);           \
    } while (0)

sl_status sli_attend(const sl_pass *pass, const sli_attention *rows)
{
    const sli_documents *documents = pass->documents;
    int64_t keys = rows->key_heads > 0 ? rows->key_heads : rows->heads;
    int64_t out = rows->heads * rows->head_width, qkv = out + 2 * keys * rows->head_width;
    if (!documents)
        return sli_device_attention(pass->options.device, rows);
    SL_TRY(check_rows(documents, rows->samples, rows->room));
    for (int64_t i = 0; i < documents->count; i++) {
        const sli_document *document = &documents->all[i];
        sli_attention own = *rows;
        NARROW(own, documents, document, qkv, out);
        SL_TRY(sli_device_attention(pass->options.device, &own));
    }
    return SL_OK;
}

sl_status sli_attend_backward(const sl_pass *pass, const sli_attention_backward *rows)
{
    const sli_documents *documents = pass->documents;
    int64_t keys = rows->key_heads > 0 ? rows->key_heads : rows->heads;
    int64_t out = rows->heads * rows->head_width, qkv = out + 2 * keys * rows->head_width;
    if (!documents)
        return sli_device_attention_backward(pass->options.device, rows);
    for (int64_t i = 0; i < documents->count; i++) {
        const sli_document *document = &documents->all[i];
        sli_attention_backward own = *rows;
        NARROW(own, documents, document, qkv, out);
        MOVE(own.grad_out, document->first * out);
        MOVE(own.grad_qkv, document->first * qkv);
        MOVE(own.grad_qkv_bf16, document->first * qkv);
        SL_TRY(sli_device_attention_backward(pass->options.device, &own));
    }
    return SL_OK;
}

static sl_status rotate_behind_caches(const sl_pass *pass, const sli_rotary *rows)
{
    for (int64_t row = 0; row * rows->rows_per_sample < rows->rows; row++) {
        sli_rotary own = *rows;
        own.rows = rows->rows_per_sample;
        own.first_position = sl_pass_position(pass, row);
        own.x += row * own.rows * rows->ld;
        SL_TRY(sli_device_rotary(pass->options.device, &own));
    }
    return SL_OK;
}

sl_status sli_rotate(const sl_pass *pass, const sli_rotary *rows)
{
    const sli_documents *documents = pass->documents;
    if (pass->options.caches)
        return rotate_behind_caches(pass, rows);
    if (!documents)
        return sli_device_rotary(pass->options.device, rows);
    for (int64_t i = 0; i < documents->count; i++) {
        const sli_document *document = &documents->all[i];
        sli_rotary own = *rows;
        own.rows = own.rows_per_sample = document->length;
        own.x += document->first * rows->ld;
        SL_TRY(sli_device_rotary(pass->options.device, &own));
    }
    return SL_OK;
}

static sl_status embed_behind_caches(const sl_pass *pass, const sli_embedding *rows)
{
    int64_t time = rows->dropout.rows_per_sample;
    for (int64_t row = 0; row * time < rows->rows; row++) {
        sli_embedding own = *rows;
        own.rows = time;
        own.ids += row * time;
        own.out += row * time * rows->width;
        own.positions += sl_pass_position(pass, row) * rows->width;
        SL_TRY(sli_device_embedding(pass->options.device, &own));
    }
    return SL_OK;
}

sl_status sli_embed(const sl_pass *pass, const sli_embedding *rows)
{
    const sli_documents *documents = rows->positions ? pass->documents : NULL;
    if (rows->positions && pass->options.caches)
        return embed_behind_caches(pass, rows);
    if (!documents)
        return sli_device_embedding(pass->options.device, rows);
    SL_TRY(check_rows(documents, rows->rows / rows->dropout.rows_per_sample,
                      rows->dropout.rows_per_sample));
    for (int64_t i = 0; i < documents->count; i++) {
        const sli_document *document = &documents->all[i];
        sli_embedding own = *rows;
        own.rows = document->length;
        own.ids += document->first;
        own.out += document->first * rows->width;
        own.dropout = dropout_of(&rows->dropout, document, documents->positions, 1);
        SL_TRY(sli_device_embedding(pass->options.device, &own));
    }
    return SL_OK;
}

sl_status sli_embed_backward(const sl_pass *pass, const sli_embedding_backward *rows,
                             bool has_positions)
{
    const sli_documents *documents = has_positions ? pass->documents : NULL;
    if (!documents)
        return sli_device_embedding_backward(pass->options.device, rows);
    for (int64_t i = 0; i < documents->count; i++) {
        const sli_document *document = &documents->all[i];
        sli_embedding_backward own = *rows;
        own.rows = document->length;
        own.ids += document->first;
        own.grad_out += document->first * rows->width;
        own.dropout = dropout_of(&rows->dropout, document, documents->positions, 1);
        SL_TRY(sli_device_embedding_backward(pass->options.device, &own));
    }
    return SL_OK;
}
