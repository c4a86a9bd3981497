/* Reading and writing safetensors files: named tensors, as PyTorch's users exchange them.
 *
 * A file is an 8-byte little-endian length, a JSON header of that length (name → data type, shape,
 * byte range) and the tensors' bytes. Opening a file checks its whole header; after that only the
 * disk can fail. Writing is atomic: the file appears under its name complete, or not at all.
 *
 * Most callers need only sl_safetensors_load and sl_safetensors_save.
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
 * Borrows all. Errors: those of sl_safetensors_open; SL_ERR_INVALID naming the tensors that are
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

/* ---- Reading step by step ---- */

/* An open file. Functions that take it const may be called by several threads at once. */
typedef struct sl_safetensors_reader sl_safetensors_reader;

/* What a file says of one tensor; it lives as long as its reader. */
typedef struct sl_safetensors_info {
    const char *name;
    const char *type_name; /* as the format spells it: "F32", "BF16", "U8", … */
    bool readable;         /* sluice has this data type */
    sl_dtype dtype;        /* meaningful where `readable` */
    int dims;              /* may be more than SL_MAX_DIMS */
    const int64_t *size;   /* [dims] */
    uint64_t bytes;
} sl_safetensors_info;

/* Opens a file and checks its header completely. Errors: SL_ERR_NOT_FOUND, SL_ERR_IO,
 * SL_ERR_MEMORY; SL_ERR_FORMAT with one sentence on what is wrong: a truncated file, a header
 * length that passes the file's end or 100 MB, invalid JSON or UTF-8, a name used twice, an unknown
 * data type, a byte range that does not match shape and data type, ranges that overlap, leave holes
 * or do not end with the file, products that overflow, `__metadata__` other than strings. */
sl_status sl_safetensors_open(const char *path, sl_safetensors_reader **out);

void sl_safetensors_close(sl_safetensors_reader **reader);

size_t sl_safetensors_count(const sl_safetensors_reader *reader);

/* The tensor at `index`, 0 to count - 1, in the order in which their bytes lie in the file. */
const sl_safetensors_info *sl_safetensors_get(const sl_safetensors_reader *reader, size_t index);

/* The tensor of that name, or NULL. */
const sl_safetensors_info *sl_safetensors_find(const sl_safetensors_reader *reader,
                                               const char *name);

/* The value of a key of the file's `__metadata__`, or NULL; it lives as long as the reader. */
const char *sl_safetensors_metadata(const sl_safetensors_reader *reader, const char *key);

/* Reads a tensor's bytes into `to`, which holds `info->bytes`; `info` came from this reader.
 * Errors: SL_ERR_UNSUPPORTED where the tensor is not `readable`, SL_ERR_IO. */
sl_status sl_safetensors_read(const sl_safetensors_reader *reader, const sl_safetensors_info *info,
                              void *to);

SL_API_END

#endif
