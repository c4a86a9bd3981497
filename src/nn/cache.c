/* What modules keep of a row's earlier positions. Each module has an entry of its own, so modules
 * of different stages may use a cache at the same time. */
#include "nn/layers.h"
#include "nn/module.h"

#include "core/error.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdlib.h>

struct sl_cache {
    int64_t positions, position;
    bool is_seen; /* while the caches of a batch are compared */
    uint32_t module_count;
    sl_tensor *tensors[]; /* [module_count] by the modules' numbers; NULL: not used yet */
};

sl_status sl_cache_create(const sl_module *model, int64_t positions, sl_cache **out)
{
    *out = NULL;
    if (positions < 1)
        return sl_error(SL_ERR_INVALID,
                        "sl_cache_create: a cache has at least 1 position, got %" PRId64,
                        positions);
    uint32_t count = sli_module_root((sl_module *)model)->modules_end;
    sl_cache *cache = calloc(1, sizeof *cache + count * sizeof *cache->tensors);
    if (!cache)
        return sli_no_memory("sl_cache_create", "a cache");
    cache->positions = positions;
    cache->module_count = count;
    *out = cache;
    return SL_OK;
}

void sl_cache_destroy(sl_cache **cache)
{
    if (!cache || !*cache)
        return;
    for (uint32_t i = 0; i < (*cache)->module_count; i++)
        sl_tensor_destroy(&(*cache)->tensors[i]);
    free(*cache);
    *cache = NULL;
}

int64_t sl_cache_position(const sl_cache *cache)
{
    return cache->position;
}

sl_status sli_cache_check_room(const sl_cache *cache, int64_t count)
{
    if (count > cache->positions - cache->position)
        return sl_error(SL_ERR_INVALID,
                        "the cache has %" PRId64 " of %" PRId64 " positions, so %" PRId64
                        " more do not fit",
                        cache->position, cache->positions, count);
    return SL_OK;
}

sl_status sli_cache_check_rows(const char *who, sl_cache *const *caches, int64_t rows)
{
    sl_status status = SL_OK;
    int64_t seen = 0;
    for (; seen < rows && status == SL_OK; seen++) {
        if (!caches[seen])
            status =
                sl_error(SL_ERR_INVALID, "%s: the cache of row %" PRId64 " is NULL", who, seen);
        else if (caches[seen]->is_seen)
            status = sl_error(SL_ERR_INVALID,
                              "%s: row %" PRId64 " has the cache of a row before it", who, seen);
        else
            caches[seen]->is_seen = true;
    }
    for (int64_t row = 0; row < seen; row++)
        if (caches[row])
            caches[row]->is_seen = false;
    return status;
}

sl_status sli_cache_advance(sl_cache *cache, int64_t count)
{
    if (count < 0)
        return sl_error(SL_ERR_INVALID,
                        "a cache's count of positions must not be negative, got %" PRId64, count);
    SL_TRY(sli_cache_check_room(cache, count));
    cache->position += count;
    return SL_OK;
}

int64_t sl_pass_position(const sl_pass *pass, int64_t row)
{
    if (pass->slices)
        return pass->first_position;
    return pass->options.caches ? pass->options.caches[row]->position : 0;
}

static sl_status find_tensor(const sl_pass *pass, const sl_module *module, const sl_tensor *in,
                             int64_t row, int64_t width, sl_dtype dtype, sl_tensor **out)
{
    const sl_shape *shape = sl_tensor_shape(in);
    *out = NULL;
    if (pass->slices)
        return sl_error(
            SL_ERR_UNSUPPORTED,
            "sl_pass_cache_tensor: on a pass over a slice of rows a module has no cache");
    if (!pass->options.caches)
        return SL_OK;
    if (shape->dims < 2)
        return sl_error(SL_ERR_INVALID, "on a pass with a cache the input must be [N, T, ...]");
    sl_cache *cache = pass->options.caches[row];
    if (module->number >= cache->module_count)
        return sl_error(SL_ERR_INVALID, "the cache was created for another model");
    SL_TRY(sli_cache_check_room(cache, shape->size[1]));
    sl_tensor **tensor = &cache->tensors[module->number];
    if (!*tensor) {
        sl_shape all = sl_shape_2d(cache->positions, width);
        SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, dtype, &all, tensor));
    }
    *out = *tensor;
    return SL_OK;
}

sl_status sl_pass_cache_tensor(const sl_pass *pass, const sl_module *module, const sl_tensor *in,
                               int64_t row, int64_t width, sl_tensor **out)
{
    return find_tensor(pass, module, in, row, width, SL_F32, out);
}

/* Stores the last columns that a module has of the positions of the pass's row, in f32 [N, T,
 * width], behind the earlier positions of `all`, its tensor in the row's cache. */
static sl_status store(const sl_pass *pass, const sl_tensor *in, int64_t row, const sl_tensor *all)
{
    const sl_shape *shape = sl_tensor_shape(in);
    int64_t time = shape->size[1], width = shape->size[2], kept = sl_tensor_shape(all)->size[1];
    int64_t each = kept == width ? time : 1; /* positions that lie together in both */
    size_t kept_bytes = (size_t)kept * sl_dtype_bytes(sl_tensor_dtype(all));
    char *target = (char *)sl_tensor_data(all) + (size_t)sl_pass_position(pass, row) * kept_bytes;
    const float *source = sl_tensor_f32(in) + row * time * width + width - kept;
    for (int64_t t = 0; t < time; t += each) {
        const sli_convert last = {.count = each * kept,
                                  .to_bf16 = sl_tensor_dtype(all) == SL_BF16,
                                  .from = source + t * width,
                                  .to = target + (size_t)t * kept_bytes};
        SL_TRY(last.to_bf16 ? sli_device_convert(pass->options.device, &last)
                            : sli_device_copy(pass->options.device, last.to, last.from,
                                              (size_t)each * kept_bytes));
    }
    return SL_OK;
}

/* The first `positions` of `all` in f32; where it is in f32, an alias with all positions. */
static sl_status widen(const sl_tensor *all, int64_t positions, sl_tensor **out)
{
    sl_shape shape = sl_shape_2d(positions, sl_tensor_shape(all)->size[1]);
    sl_tensor *narrow;
    if (sl_tensor_dtype(all) == SL_F32)
        return sl_tensor_alias(all, out);
    SL_TRY(sl_tensor_view(all, 0, &shape, &narrow));
    sl_status status = sli_tensor_as(narrow, SL_F32, SL_MEMORY_WORKSPACE, out);
    sl_tensor_destroy(&narrow);
    return status;
}

static sl_status attend_in_cache(const sl_pass *pass, const sl_module *module,
                                 const sli_attention *heads, sl_dtype dtype, const sl_tensor *qkv,
                                 int64_t row, sl_tensor *attended)
{
    const sl_shape *shape = sl_tensor_shape(qkv);
    int64_t time = shape->size[1], earlier = sl_pass_position(pass, row);
    bool has_keys_alone = sli_device_takes_keys(pass->options.device);
    int64_t columns = has_keys_alone ? 2 * heads->key_heads * heads->head_width : shape->size[2];
    sli_attention own = *heads;
    sl_tensor *all, *wide;
    SL_TRY(find_tensor(pass, module, qkv, row, columns, dtype, &all));
    SL_TRY(store(pass, qkv, row, all));
    SL_TRY(widen(all, earlier + time, &wide));
    own.samples = 1;
    own.positions = earlier + time;
    own.first_query = earlier;
    own.room = sl_tensor_shape(wide)->size[0];
    own.qkv =
        has_keys_alone ? sl_tensor_f32(qkv) + row * time * shape->size[2] : sl_tensor_f32(wide);
    own.kv = has_keys_alone ? sl_tensor_f32(wide) : NULL;
    own.out = sl_tensor_f32(attended) + row * time * heads->heads * heads->head_width;
    sl_status status = sli_device_attention(pass->options.device, &own);
    sl_tensor_destroy(&wide);
    return status;
}

sl_status sli_attend_in_caches(const sl_pass *pass, const sl_module *module,
                               const sli_attention *heads, sl_dtype dtype, const sl_tensor *qkv,
                               sl_tensor *attended)
{
    for (int64_t row = 0; row < sl_tensor_shape(qkv)->size[0]; row++)
        SL_TRY(attend_in_cache(pass, module, heads, dtype, qkv, row, attended));
    return SL_OK;
}
