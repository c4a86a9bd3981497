/* Reading and writing safetensors files: named tensors, as PyTorch's users exchange them.
 *
 * A file is an 8-byte little-endian length, a JSON header of that length (name → data type, shape,
 * byte range) and the tensors' bytes. Opening a file checks its whole header; after that only the
 * disk can fail. Writing is atomic: the file appears under its name complete, or not at all.
 *
 * Source: the format's description and its reference implementation (Hugging Face's
 * `safetensors`), whose checks are all made here. Stricter than that implementation: a name that
 * occurs twice and a header that does not begin with `{` are errors. */
#ifndef SLUICE_SAFETENSORS_H
#define SLUICE_SAFETENSORS_H

#include "sluice/status.h"
#include "sluice/tensor.h"

SL_API_BEGIN

/* One tensor in host memory. */
typedef struct sl_safetensors_item {
    const char *name; /* UTF-8 */
    sl_dtype dtype;
    sl_shape shape;
    void *data; /* dense, row-major; may be NULL where the tensor has no elements */
} sl_safetensors_item;

/* One entry of a file's `__metadata__`. */
typedef struct sl_metadata {
    const char *key;
    const char *value;
} sl_metadata;

/* Reads a file into `items`, which must be exactly the tensors that the file holds, in any order.
 * Instead of a file, `path` may be Hugging Face's index of several (model.safetensors.index.json),
 * a directory with model.safetensors or with that index, or a checkpoint, whose checksums are then
 * compared while its model is read. All other checks come before the first byte is written to
 * memory.
 * Borrows all. Errors: SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_MEMORY; SL_ERR_FORMAT for a file that is
 * damaged; SL_ERR_INVALID naming the tensors that are
 * missing from the file and those that are unexpected (the first few of each, and how many), or a
 * tensor whose shape or data type differs, with both. */
sl_status sl_safetensors_load(const char *path, const sl_safetensors_item *items, size_t count);

/* Writes `items` and `metadata` to a file, replacing an older one only when all is safely on disk;
 * an error leaves that as it was. The disk space for all of it is taken first, where the file
 * system can. The bytes lie in the file in the order of `items`, larger elements first, so that
 * each tensor is aligned to its element. Borrows all. Errors: SL_ERR_INVALID for a name that is
 * used twice, is not UTF-8 or is `__metadata__`, for an impossible shape, and where `path` is a
 * directory or device; SL_ERR_NOT_FOUND where its directory does not exist; SL_ERR_IO, for instance
 * on a full disk. */
sl_status sl_safetensors_save(const char *path, const sl_safetensors_item *items, size_t count,
                              const sl_metadata *metadata, size_t metadata_count);

/* What a file says of one tensor; it lives as long as the reader that gave it. */
typedef struct sl_safetensors_info {
    const char *name;
    const char *type_name; /* as the format spells it: "F32", "BF16", "U8", … */
    bool readable;         /* sluice has this data type */
    sl_dtype dtype;        /* meaningful where `readable` */
    int dims;              /* may be more than SL_MAX_DIMS */
    const int64_t *size;   /* [dims] */
    uint64_t bytes;
} sl_safetensors_info;

SL_API_END

#endif
