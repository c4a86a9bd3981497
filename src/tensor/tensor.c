#include "tensor/tensor.h"
#include "core/dtype.h"

#include "device/device.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct storage {
    sl_device *device;  /* whose memory it is */
    sl_device *counted; /* on whose account; changed by the only handle's owner */
    sl_memory_category category;
    size_t bytes;
    void *memory;
    sli_file_map *map;        /* that the memory belongs to; NULL: it is the device's */
    atomic_bool is_delivered; /* to another device */
    /* What the host wrote is in 0 .. below - 1, as far as it knows; 0: it does not. */
    int64_t below;
    /* Handles on this storage may be dropped by different threads (stages hand tensors over). */
    atomic_int handles;
} storage;

struct sl_tensor {
    storage *storage;
    sl_device *device; /* whose kernels work on it: the storage's, until it is handed over */
    void *mark;        /* since it was sent: what comes before its content is there */
    int64_t offset;    /* in elements */
    sl_dtype dtype;
    sl_shape shape;
};

sl_shape sl_shape_1d(int64_t a)
{
    return (sl_shape){1, {a}};
}

sl_shape sl_shape_2d(int64_t a, int64_t b)
{
    return (sl_shape){2, {a, b}};
}

sl_shape sl_shape_3d(int64_t a, int64_t b, int64_t c)
{
    return (sl_shape){3, {a, b, c}};
}

int64_t sl_shape_count(const sl_shape *shape)
{
    uint64_t count = 1; /* wraps where no tensor could have the shape, which is for others to say */
    for (int i = 0; i < shape->dims; i++)
        count *= (uint64_t)shape->size[i];
    return (int64_t)count;
}

bool sl_shape_equal(const sl_shape *a, const sl_shape *b)
{
    if (a->dims != b->dims)
        return false;
    for (int i = 0; i < a->dims; i++)
        if (a->size[i] != b->size[i])
            return false;
    return true;
}

const char *sl_shape_text(const sl_shape *shape, char *text)
{
    size_t used = (size_t)snprintf(text, SL_SHAPE_TEXT_BYTES, "[");
    for (int i = 0; i < shape->dims; i++)
        used += (size_t)snprintf(text + used, SL_SHAPE_TEXT_BYTES - used, "%s%" PRId64,
                                 i ? ", " : "", shape->size[i]);
    snprintf(text + used, SL_SHAPE_TEXT_BYTES - used, "]");
    return text;
}

static sl_status check_shape(const char *who, const sl_shape *shape)
{
    if (shape->dims < 0 || shape->dims > SL_MAX_DIMS)
        return sl_error(SL_ERR_INVALID, "%s: a shape has 0 to %d dimensions, got %d", who,
                        SL_MAX_DIMS, shape->dims);
    int64_t count = 1; /* without sizes of 0: parts of the shape are multiplied elsewhere */
    for (int i = 0; i < shape->dims; i++) {
        char text[SL_SHAPE_TEXT_BYTES];
        if (shape->size[i] < 0)
            return sl_error(SL_ERR_INVALID, "%s: sizes must not be negative, got %s", who,
                            sl_shape_text(shape, text));
        if ((shape->size[i] != 0 && __builtin_mul_overflow(count, shape->size[i], &count)) ||
            count > INT64_MAX / 8)
            return sl_error(SL_ERR_INVALID, "%s: shape %s has too many elements", who,
                            sl_shape_text(shape, text));
    }
    return SL_OK;
}

static sl_status storage_create(sl_device *device, sl_memory_category category, size_t bytes,
                                bool is_zero, storage **out)
{
    storage *created = malloc(sizeof *created);
    if (!created)
        return sli_no_memory("sl_tensor_create", "a tensor's record");
    *created = (storage){.device = device, .counted = device, .category = category, .bytes = bytes};
    atomic_init(&created->is_delivered, false);
    atomic_init(&created->handles, 0);
    sl_status status = (is_zero ? sli_device_allocate_zero
                                : sli_device_allocate)(device, category, bytes, &created->memory);
    if (status != SL_OK) {
        free(created);
        return status;
    }
    *out = created;
    return SL_OK;
}

static sl_status handle_create(storage *store, sl_device *device, int64_t offset, sl_dtype dtype,
                               const sl_shape *shape, sl_tensor **out)
{
    sl_tensor *tensor = malloc(sizeof *tensor);
    if (!tensor)
        return sli_no_memory("sl_tensor_create", "a tensor's record");
    *tensor = (sl_tensor){store, device, NULL, offset, dtype, *shape};
    atomic_fetch_add_explicit(&store->handles, 1, memory_order_relaxed);
    *out = tensor;
    return SL_OK;
}

static void storage_free(storage *dead)
{
    if (dead->map)
        sli_file_map_release(&dead->map);
    else if (atomic_load_explicit(&dead->is_delivered, memory_order_relaxed))
        sli_device_release_delivered(dead->device, dead->counted, dead->category, dead->memory,
                                     dead->bytes);
    else
        sli_device_release_counted(dead->device, dead->counted, dead->category, dead->memory,
                                   dead->bytes);
    free(dead);
}

void sli_tensor_map(sl_tensor *tensor, sli_file_map *map, void *memory)
{
    storage *store = tensor->storage;
    sli_file_map *before = store->map;
    assert(tensor->offset == 0 && store->bytes == sli_tensor_bytes(tensor));
    if (!before)
        sli_device_discard_counted(store->device, store->counted, store->category, store->memory,
                                   store->bytes);
    store->map = sli_file_map_hold(map);
    store->memory = memory;
    sli_file_map_release(&before);
}

static sl_status create(sl_device *device, sl_memory_category category, sl_dtype dtype,
                        const sl_shape *shape, bool is_zero, sl_tensor **out)
{
    *out = NULL;
    SL_TRY(check_shape("sl_tensor_create", shape));
    size_t bytes = (size_t)sl_shape_count(shape) * sl_dtype_bytes(dtype);
    storage *on = NULL;
    SL_TRY(storage_create(device, category, bytes, is_zero, &on));
    sl_status status = handle_create(on, device, 0, dtype, shape, out);
    if (status != SL_OK)
        storage_free(on);
    return status;
}

sl_status sl_tensor_create(sl_device *device, sl_memory_category category, sl_dtype dtype,
                           const sl_shape *shape, sl_tensor **out)
{
    return create(device, category, dtype, shape, false, out);
}

sl_status sl_tensor_create_zero(sl_device *device, sl_memory_category category, sl_dtype dtype,
                                const sl_shape *shape, sl_tensor **out)
{
    return create(device, category, dtype, shape, true, out);
}

sl_status sl_tensor_alias(const sl_tensor *tensor, sl_tensor **out)
{
    *out = NULL;
    return handle_create(tensor->storage, tensor->device, tensor->offset, tensor->dtype,
                         &tensor->shape, out);
}

sl_status sl_tensor_view(const sl_tensor *tensor, int64_t offset, const sl_shape *shape,
                         sl_tensor **out)
{
    *out = NULL;
    SL_TRY(check_shape("sl_tensor_view", shape));
    int64_t end = sl_tensor_count(tensor);
    if (offset < 0 || offset > end || sl_shape_count(shape) > end - offset) {
        char asked[SL_SHAPE_TEXT_BYTES], have[SL_SHAPE_TEXT_BYTES];
        return sl_error(SL_ERR_INVALID,
                        "sl_tensor_view: %s at element %" PRId64 " does not fit in a tensor of %s",
                        sl_shape_text(shape, asked), offset, sl_shape_text(&tensor->shape, have));
    }
    return handle_create(tensor->storage, tensor->device, tensor->offset + offset, tensor->dtype,
                         shape, out);
}

sl_status sli_tensor_narrow(const sl_tensor *tensor, int64_t start, int64_t length, sl_tensor **out)
{
    *out = NULL;
    if (tensor->shape.dims == 0 || start < 0 || length < 0 ||
        start > tensor->shape.size[0] - length) {
        char have[SL_SHAPE_TEXT_BYTES];
        return sl_error(SL_ERR_INVALID,
                        "sli_tensor_narrow: %" PRId64 " rows from row %" PRId64
                        " of a tensor of %s",
                        length, start, sl_shape_text(&tensor->shape, have));
    }
    int64_t row = 1;
    for (int i = 1; i < tensor->shape.dims; i++)
        row *= tensor->shape.size[i];
    sl_shape shape = tensor->shape;
    shape.size[0] = length;
    return handle_create(tensor->storage, tensor->device, tensor->offset + start * row,
                         tensor->dtype, &shape, out);
}

void sl_tensor_destroy(sl_tensor **tensor)
{
    if (!tensor || !*tensor)
        return;
    storage *store = (*tensor)->storage;
    sli_device_drop_mark(store->device, (*tensor)->mark);
    free(*tensor);
    *tensor = NULL;
    /* acq_rel: the thread that drops the last handle sees all writes of the others. */
    if (atomic_fetch_sub_explicit(&store->handles, 1, memory_order_acq_rel) == 1)
        storage_free(store);
}

const sl_shape *sl_tensor_shape(const sl_tensor *tensor)
{
    return &tensor->shape;
}

sl_dtype sl_tensor_dtype(const sl_tensor *tensor)
{
    return tensor->dtype;
}

sl_device *sl_tensor_device(const sl_tensor *tensor)
{
    return tensor->device;
}

void sli_tensor_hand_over(sl_tensor *tensor, sl_device *to)
{
    storage *store = tensor->storage;
    tensor->device = to;
    if (sli_tensor_is_shared(tensor))
        return;
    if (store->counted != to && store->memory && !store->map)
        sli_device_recount(store->counted, to, store->category, store->bytes);
    store->counted = to;
}

/* Do both devices work on the same memory? */
static bool reach_each_other(const sl_device *a, const sl_device *b)
{
    return a == b || (sl_device_has_host_memory(a) && sl_device_has_host_memory(b));
}

void sli_tensor_send(sl_tensor *tensor, sl_device *to)
{
    sl_device *from = tensor->device;
    if (reach_each_other(from, to)) {
        sli_tensor_hand_over(tensor, to);
    } else {
        sli_device_drop_mark(from, tensor->mark);
        tensor->mark = sli_device_mark(from);
    }
}

sl_status sli_tensor_receive(sl_tensor **tensor, sl_device *to)
{
    sl_tensor *sent = *tensor;
    if (sent->device == to)
        return SL_OK;
    sl_status status;
    SL_TRY_OR_FAIL(
        sl_tensor_create(to, sent->storage->category, sent->dtype, &sent->shape, tensor));
    atomic_store_explicit(&sent->storage->is_delivered, true, memory_order_relaxed);
    status = sli_device_deliver(sent->device, sent->mark, sl_tensor_data(sent), to,
                                sl_tensor_data(*tensor), sli_tensor_bytes(sent));

fail:
    sl_tensor_destroy(&sent);
    if (status != SL_OK)
        sl_tensor_destroy(tensor);
    return status;
}

sl_status sli_tensor_move(sl_tensor **tensor, sl_device *to)
{
    sli_tensor_send(*tensor, to);
    return sli_tensor_receive(tensor, to);
}

bool sli_tensor_is_shared(const sl_tensor *tensor)
{
    return atomic_load_explicit(&tensor->storage->handles, memory_order_acquire) != 1;
}

int64_t sl_tensor_count(const sl_tensor *tensor)
{
    return sl_shape_count(&tensor->shape);
}

/* Copies each row's elements from position `first` on. */
static sl_status copy_positions(const sl_tensor *from, int64_t first, int64_t rows,
                                const sl_tensor *to)
{
    size_t stride = sli_tensor_bytes(from) / (size_t)rows,
           bytes = sli_tensor_bytes(to) / (size_t)rows;
    const char *source = sl_tensor_data(from);
    char *target = sl_tensor_data(to);
    source += stride / (size_t)from->shape.size[1] * (size_t)first;
    for (int64_t row = 0; row < rows; row++, source += stride, target += bytes)
        SL_TRY(sli_device_copy(to->device, target, source, bytes));
    return SL_OK;
}

sl_status sli_tensor_trim(sl_tensor **tensor, int64_t first, int64_t columns)
{
    sl_tensor *from = *tensor, *made;
    sl_shape shape = from->shape;
    char have[SL_SHAPE_TEXT_BYTES];
    if (shape.dims < 2 || first < 0 || columns < 1 || columns > shape.size[1] - first)
        return sl_error(SL_ERR_INVALID,
                        "%" PRId64 " positions from %" PRId64 " on are not in a tensor of %s",
                        columns, first, sl_shape_text(&shape, have));
    if (columns == shape.size[1])
        return SL_OK;
    shape.size[1] = columns;
    SL_TRY(sl_tensor_create(from->device, SL_MEMORY_WORKSPACE, from->dtype, &shape, &made));
    sl_status status = copy_positions(from, first, shape.size[0], made);
    if (status != SL_OK) {
        sl_tensor_destroy(&made);
        return status;
    }
    made->storage->below = from->storage->below;
    sl_tensor_destroy(tensor);
    *tensor = made;
    return SL_OK;
}

size_t sli_tensor_bytes(const sl_tensor *tensor)
{
    return (size_t)sl_tensor_count(tensor) * sl_dtype_bytes(tensor->dtype);
}

int64_t sl_tensor_columns(const sl_tensor *tensor)
{
    return tensor->shape.dims ? tensor->shape.size[tensor->shape.dims - 1] : 1;
}

int64_t sl_tensor_rows(const sl_tensor *tensor)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < tensor->shape.dims; i++)
        rows *= tensor->shape.size[i];
    return rows;
}

void *sl_tensor_data(const sl_tensor *tensor)
{
    if (!tensor->storage->memory)
        return NULL;
    return (char *)tensor->storage->memory + (size_t)tensor->offset * sl_dtype_bytes(tensor->dtype);
}

float *sl_tensor_f32(const sl_tensor *tensor)
{
    assert(tensor->dtype == SL_F32);
    return sl_tensor_data(tensor);
}

float *sli_tensor_if_f32(const sl_tensor *tensor)
{
    return tensor && tensor->dtype == SL_F32 ? sl_tensor_data(tensor) : NULL;
}

uint16_t *sli_tensor_if_bf16(const sl_tensor *tensor)
{
    return tensor && tensor->dtype == SL_BF16 ? sl_tensor_data(tensor) : NULL;
}

int32_t *sl_tensor_i32(const sl_tensor *tensor)
{
    assert(tensor->dtype == SL_I32);
    return sl_tensor_data(tensor);
}

sl_status sl_tensor_copy(sl_tensor *target, const sl_tensor *source)
{
    if (target->dtype != source->dtype || !sl_shape_equal(&target->shape, &source->shape)) {
        char target_text[SL_SHAPE_TEXT_BYTES], source_text[SL_SHAPE_TEXT_BYTES];
        return sl_error(SL_ERR_INVALID, "sl_tensor_copy: from %s %s to %s %s",
                        sli_dtype_name(source->dtype), sl_shape_text(&source->shape, source_text),
                        sli_dtype_name(target->dtype), sl_shape_text(&target->shape, target_text));
    }
    target->storage->below = 0;
    if (reach_each_other(target->device, source->device))
        return sli_device_copy(target->device, sl_tensor_data(target), sl_tensor_data(source),
                               sli_tensor_bytes(target));
    sli_host_array host;
    SL_TRY(sli_tensor_open_host(source, true, &host));
    sl_status status = sl_tensor_write(target, host.host);
    sli_host_array_close(&host, false);
    return status;
}

sl_status sli_tensor_open_host(const sl_tensor *tensor, bool reads, sli_host_array *out)
{
    return sli_host_array_open(tensor->device, sl_tensor_data(tensor), sli_tensor_bytes(tensor),
                               reads, out);
}

/* The least number above all elements, for a tensor that is all of its storage. */
static int64_t least_above(const sl_tensor *tensor, const int32_t *host)
{
    int64_t count = sl_tensor_count(tensor), below = 0;
    if (tensor->dtype != SL_I32 || sli_tensor_bytes(tensor) != tensor->storage->bytes ||
        sl_device_has_host_memory(tensor->device))
        return 0;
    for (int64_t i = 0; i < count; i++) {
        if (host[i] < 0)
            return 0;
        below = host[i] >= below ? host[i] + (int64_t)1 : below;
    }
    return below;
}

sl_status sli_tensor_close_host(sl_tensor *tensor, sli_host_array *host, bool writes)
{
    if (writes)
        tensor->storage->below = least_above(tensor, host->host);
    return sli_host_array_close(host, writes);
}

bool sli_tensor_is_below(const sl_tensor *tensor, int64_t count)
{
    return tensor->storage->below > 0 && tensor->storage->below <= count;
}

sl_status sli_tensor_add(sl_tensor *target, const sl_tensor *source)
{
    sl_tensor *copy = NULL;
    if (!reach_each_other(target->device, source->device)) {
        SL_TRY(
            sl_tensor_create(target->device, SL_MEMORY_WORKSPACE, SL_F32, &source->shape, &copy));
        sl_status status = sl_tensor_copy(copy, source);
        if (status != SL_OK) {
            sl_tensor_destroy(&copy);
            return status;
        }
        source = copy;
    }
    sl_status status = sli_device_add(target->device, sl_tensor_count(target),
                                      sl_tensor_f32(target), sl_tensor_f32(source));
    sl_tensor_destroy(&copy);
    return status;
}

sl_status sl_tensor_write(sl_tensor *tensor, const void *host)
{
    tensor->storage->below = least_above(tensor, host);
    return sli_device_write(tensor->device, sl_tensor_data(tensor), host, sli_tensor_bytes(tensor));
}

sl_status sl_tensor_read(const sl_tensor *tensor, void *host)
{
    return sli_device_read(tensor->device, host, sl_tensor_data(tensor), sli_tensor_bytes(tensor));
}

sl_status sli_tensor_zero(sl_tensor *tensor)
{
    tensor->storage->below = 0;
    return sli_device_zero(tensor->device, sl_tensor_data(tensor), sli_tensor_bytes(tensor));
}

sl_status sli_tensor_convert(const sl_tensor *source, sl_tensor *target)
{
    sli_convert arguments = {
        .count = sl_tensor_count(source),
        .from_bf16 = source->dtype == SL_BF16,
        .to_bf16 = target->dtype == SL_BF16,
        .from = sl_tensor_data(source),
        .to = sl_tensor_data(target),
    };
    assert(sl_tensor_count(target) == arguments.count);
    return sli_device_convert(source->device, &arguments);
}

sl_status sli_tensor_as(const sl_tensor *tensor, sl_dtype dtype, sl_memory_category category,
                        sl_tensor **out)
{
    SL_TRY(sl_tensor_create(tensor->device, category, dtype, &tensor->shape, out));
    sl_status status = sli_tensor_convert(tensor, *out);
    if (status != SL_OK)
        sl_tensor_destroy(out);
    return status;
}
