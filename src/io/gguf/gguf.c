#include "io/gguf/gguf.h"

#include "core/bf16.h"
#include "core/error.h"
#include "core/f16.h"
#include "core/memory.h"
#include "core/replace.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 3, ALIGNMENT = 32, HEAD_BYTES = 24, TENSORS_PLACE = 8 };

/* Types of values. */
enum { UINT32 = 4, INT32 = 5, FLOAT32 = 6, FLAG = 7, TEXT = 8, ARRAY = 9 };

typedef struct placed_tensor {
    int64_t elements;
    sli_gguf_type type;
    uint64_t offset; /* in the tensors' data */
} placed_tensor;

struct sli_gguf {
    sli_replace_file *file;
    uint8_t *head; /* the head, the values, and the tensors' names and shapes */
    size_t bytes, room;
    uint64_t values;
    placed_tensor *tensors;
    size_t count, tensors_room;
    uint64_t data_bytes, data_begin;
    sl_status status;
};

sl_status sli_gguf_create(const char *path, sli_gguf **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sli_no_memory(path, "a file's record");
    sl_status status;
    SL_TRY_OR_FAIL(sli_replace_file_create(path, &(*out)->file));
    SL_TRY_OR_FAIL(sli_array_reserve(&(*out)->head, &(*out)->room, HEAD_BYTES, 1, SIZE_MAX / 2,
                                     "bytes of a head"));
    (*out)->bytes = HEAD_BYTES;
    return SL_OK;
fail:
    sli_gguf_destroy(out);
    return status;
}

void sli_gguf_destroy(sli_gguf **file)
{
    if (!file || !*file)
        return;
    sli_replace_file_destroy(&(*file)->file);
    free((*file)->head);
    free((*file)->tensors);
    free(*file);
    *file = NULL;
}

/* ---- The head --------------------------------------------------------------------------- */

static void put(sli_gguf *file, const void *data, size_t bytes)
{
    if (file->status == SL_OK)
        file->status = sli_array_reserve(&file->head, &file->room, file->bytes + bytes, 1,
                                         SIZE_MAX / 2, "bytes of a head");
    if (file->status != SL_OK || bytes == 0)
        return;
    memcpy(file->head + file->bytes, data, bytes);
    file->bytes += bytes;
}

/* The machines that sluice runs on are little-endian, as the file is. */
static void put_32(sli_gguf *file, uint32_t value)
{
    put(file, &value, sizeof value);
}

static void put_64(sli_gguf *file, uint64_t value)
{
    put(file, &value, sizeof value);
}

void sli_gguf_put_text(sli_gguf *file, const char *text, size_t bytes)
{
    put_64(file, bytes);
    put(file, text, bytes);
}

void sli_gguf_put_integer(sli_gguf *file, int32_t value)
{
    put_32(file, (uint32_t)value);
}

void sli_gguf_put_float(sli_gguf *file, float value)
{
    put(file, &value, sizeof value);
}

static void put_key(sli_gguf *file, const char *key, uint32_t type)
{
    sli_gguf_put_text(file, key, strlen(key));
    put_32(file, type);
    file->values++;
}

void sli_gguf_add_number(sli_gguf *file, const char *key, uint32_t value)
{
    put_key(file, key, UINT32);
    put_32(file, value);
}

void sli_gguf_add_float(sli_gguf *file, const char *key, float value)
{
    put_key(file, key, FLOAT32);
    sli_gguf_put_float(file, value);
}

void sli_gguf_add_flag(sli_gguf *file, const char *key, bool value)
{
    uint8_t byte = value;
    put_key(file, key, FLAG);
    put(file, &byte, 1);
}

void sli_gguf_add_text(sli_gguf *file, const char *key, const char *value)
{
    put_key(file, key, TEXT);
    sli_gguf_put_text(file, value, strlen(value));
}

static void begin_array(sli_gguf *file, const char *key, uint32_t type, uint64_t count)
{
    put_key(file, key, ARRAY);
    put_32(file, type);
    put_64(file, count);
}

void sli_gguf_begin_texts(sli_gguf *file, const char *key, uint64_t count)
{
    begin_array(file, key, TEXT, count);
}

void sli_gguf_begin_integers(sli_gguf *file, const char *key, uint64_t count)
{
    begin_array(file, key, INT32, count);
}

void sli_gguf_begin_floats(sli_gguf *file, const char *key, uint64_t count)
{
    begin_array(file, key, FLOAT32, count);
}

/* ---- Tensors ---------------------------------------------------------------------------- */

/* A block of Q8_0: its scale, and its numbers as multiples of that. */
enum { BLOCK_BYTES = 2 + SLI_GGUF_BLOCK };

static uint64_t bytes_of(int64_t elements, sli_gguf_type type)
{
    uint64_t count = (uint64_t)elements;
    if (type == SLI_GGUF_Q8_0)
        return count / SLI_GGUF_BLOCK * BLOCK_BYTES;
    return count * (type == SLI_GGUF_F32 ? sizeof(float) : sizeof(uint16_t));
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void sli_gguf_add_tensor(sli_gguf *file, const char *name, const sl_shape *shape,
                         sli_gguf_type type)
{
    const placed_tensor placed = {sl_shape_count(shape), type, file->data_bytes};
    assert(type != SLI_GGUF_Q8_0 || shape->size[shape->dims - 1] % SLI_GGUF_BLOCK == 0);
    sli_gguf_put_text(file, name, strlen(name));
    put_32(file, (uint32_t)shape->dims);
    for (int d = shape->dims - 1; d >= 0; d--)
        put_64(file, (uint64_t)shape->size[d]);
    put_32(file, (uint32_t)type);
    put_64(file, placed.offset);
    if (file->status == SL_OK)
        file->status =
            sli_array_reserve(&file->tensors, &file->tensors_room, file->count + 1,
                              sizeof *file->tensors, SIZE_MAX / sizeof *file->tensors, "tensors");
    if (file->status != SL_OK)
        return;
    file->tensors[file->count++] = placed;
    file->data_bytes += aligned(bytes_of(placed.elements, type));
}

sl_status sli_gguf_begin(sli_gguf *file)
{
    static const uint8_t zeros[ALIGNMENT];
    const uint32_t version = VERSION;
    const uint64_t count = file->count;
    file->data_begin = aligned(file->bytes);
    put(file, zeros, (size_t)(file->data_begin - file->bytes));
    SL_TRY(file->status);
    memcpy(file->head, "GGUF", 4);
    memcpy(file->head + 4, &version, sizeof version);
    memcpy(file->head + TENSORS_PLACE, &count, sizeof count);
    memcpy(file->head + TENSORS_PLACE + sizeof count, &file->values, sizeof file->values);
    SL_TRY(sli_replace_file_reserve(file->file, file->data_begin + file->data_bytes));
    return sli_replace_file_write(file->file, 0, file->head, file->bytes);
}

/* As ggml's quantize_row_q8_0_ref: the largest number becomes 127, others are rounded to nearest,
 * halves away from zero. */
static void quantize(const float *values, int64_t count, uint8_t *to)
{
    for (int64_t first = 0; first < count; first += SLI_GGUF_BLOCK, to += BLOCK_BYTES) {
        float largest = 0;
        for (int i = 0; i < SLI_GGUF_BLOCK; i++)
            largest = fmaxf(largest, fabsf(values[first + i]));
        float scale = largest / 127, inverse = scale > 0 ? 1 / scale : 0;
        uint16_t narrow = sli_f16_from_f32(scale);
        memcpy(to, &narrow, sizeof narrow);
        for (int i = 0; i < SLI_GGUF_BLOCK; i++)
            to[2 + i] = (uint8_t)(int8_t)roundf(values[first + i] * inverse);
    }
}

/* What is rounded to infinity in an f16, and in the scale of a block. */
static const float past_f16 = 65520, past_q8_0 = 65520.0F * 127;

static sl_status check_range(const float *values, const placed_tensor *tensor)
{
    if (tensor->type != SLI_GGUF_F16 && tensor->type != SLI_GGUF_Q8_0)
        return SL_OK;
    for (int64_t i = 0; i < tensor->elements; i++) {
        bool fits = tensor->type == SLI_GGUF_F16
                        ? !isfinite(values[i]) || fabsf(values[i]) < past_f16
                        : fabsf(values[i]) < past_q8_0;
        if (!fits)
            return sl_error(SL_ERR_NUMERIC, "%s cannot hold %g, number %lld of the tensor",
                            tensor->type == SLI_GGUF_F16 ? "f16" : "q8_0", (double)values[i],
                            (long long)i);
    }
    return SL_OK;
}

static void convert(const float *values, const placed_tensor *tensor, void *to)
{
    uint16_t *narrow = to;
    switch (tensor->type) {
    case SLI_GGUF_F32:
        memcpy(to, values, (size_t)tensor->elements * sizeof *values);
        break;
    case SLI_GGUF_F16:
        for (int64_t i = 0; i < tensor->elements; i++)
            narrow[i] = sli_f16_from_f32(values[i]);
        break;
    case SLI_GGUF_BF16:
        sli_narrow_to_bf16(values, narrow, tensor->elements);
        break;
    case SLI_GGUF_Q8_0:
        quantize(values, tensor->elements, to);
        break;
    }
}

sl_status sli_gguf_write(sli_gguf *file, size_t index, const float *values)
{
    const placed_tensor *tensor = &file->tensors[index];
    uint64_t bytes = bytes_of(tensor->elements, tensor->type);
    SL_TRY(check_range(values, tensor));
    void *converted = calloc(1, (size_t)aligned(bytes) + 1);
    if (!converted)
        return sli_no_memory(NULL, "a tensor of %llu bytes", (unsigned long long)bytes);
    convert(values, tensor, converted);
    sl_status status = sli_replace_file_write(file->file, file->data_begin + tensor->offset,
                                              converted, (size_t)aligned(bytes));
    free(converted);
    return status;
}

sl_status sli_gguf_commit(sli_gguf *file)
{
    return sli_replace_file_commit(file->file);
}
