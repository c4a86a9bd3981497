/* Checkpoints: directories from which a run can go on as if nothing had happened.
 *
 *   step-00000040/
 *       state.json                      what the run needs beside tensors, and for every other file
 *                                       its size and checksum
 *       model.safetensors               a part: named tensors. Larger than the shard size, it is
 *       optimizer.safetensors           model-00001-of-00003.safetensors, … with the index of
 *       …                               Hugging Face, model.safetensors.index.json
 *       config.json, tokenizer.json     any other files
 *
 * A directory appears under its name complete and on disk, or not at all. Checksums are XXH3's of
 * 128 bits, as `xxh128sum` prints them; state.json carries its own. A file that was truncated,
 * changed, taken from another checkpoint or deleted is an error, which names it and the reason.
 * Nothing in a checkpoint is ever executed.
 *
 * A directory without state.json is a model, as Hugging Face has them: model.safetensors, or an
 * index and its files, with config.json and tokenizer.json. Such a directory, its model.safetensors
 * or its index, and any other index or file of tensors are read like a checkpoint whose one part is
 * "model".
 *
 * This is the format alone, for any tensors; what a training run saves, and how it goes on, is in
 * sluice/app/train.h. */
#ifndef SLUICE_CHECKPOINT_H
#define SLUICE_CHECKPOINT_H

#include "sluice/safetensors.h"

SL_API_BEGIN

/* ---- Saving ----------------------------------------------------------------------------- */

/* Tensors under one name. */
typedef struct sl_checkpoint_part {
    const char *name; /* letters, digits, - and _, at most 200 */
    const sl_safetensors_item *items;
    size_t count;
    const sl_metadata *metadata; /* the metadata of each of its files */
    size_t metadata_count;
} sl_checkpoint_part;

/* A file as it is. */
typedef struct sl_checkpoint_file {
    const char *name; /* no path; neither state.json nor a part's */
    const void *data;
    size_t bytes;
} sl_checkpoint_file;

enum { SL_CHECKPOINT_MOST_PARTS = 64 };

typedef struct sl_checkpoint_contents {
    const sl_checkpoint_part *parts; /* at most SL_CHECKPOINT_MOST_PARTS */
    size_t part_count;
    const sl_checkpoint_file *files;
    size_t file_count;
    const char *state;    /* the text of a JSON object; NULL: {} */
    uint64_t shard_bytes; /* a part with more bytes of tensors is cut between tensors, into files of
                             at most this size; 0: never */
} sl_checkpoint_contents;

/* Writes `contents` (borrowed) to the directory `path`. It replaces an older checkpoint there, or a
 * link to one (whose target stays), but nothing else. An error leaves the older one as it was.
 * Errors: SL_ERR_INVALID for impossible names or contents; SL_ERR_NOT_FOUND where what should hold
 * `path` does not exist; SL_ERR_IO. */
sl_status sl_checkpoint_save(const char *path, const sl_checkpoint_contents *contents);

/* ---- Reading ---------------------------------------------------------------------------- */

/* An open checkpoint. Functions that take it const may be called by several threads at once. Keeps
 * its files open, up to half of those that the process may open (RLIMIT_NOFILE), and reopens the
 * others for each read: of these a checkpoint that is replaced meanwhile is an error. */
typedef struct sl_checkpoint_reader sl_checkpoint_reader;

typedef struct sl_checkpoint_file_info {
    const char *name;
    const char *part; /* NULL: it belongs to none */
    uint64_t bytes;
    const char *checksum; /* 32 hexadecimal digits; NULL: a model's, which has none */
} sl_checkpoint_file_info;

/* Opens a checkpoint or a model and checks all but the tensors' bytes: state.json and its checksum,
 * that every file is there with its size, the headers, what an index says. What is read from it is
 * of one save, also where another process replaces the directory meanwhile. Errors:
 * SL_ERR_NOT_FOUND where there is neither, SL_ERR_FORMAT naming the file and what is wrong with it,
 * SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sl_checkpoint_open(const char *path, sl_checkpoint_reader **out);
void sl_checkpoint_close(sl_checkpoint_reader **reader);

/* The state as it was given, the text of a JSON object; and the version of sluice that wrote it.
 * Both are NULL for a model. Like all that follows they live as long as the reader. */
const char *sl_checkpoint_state(const sl_checkpoint_reader *reader);
const char *sl_checkpoint_version(const sl_checkpoint_reader *reader);

/* A number of the state by its key: "step" of what a program saved as {"step": 40}, and of a
 * training run "step", "epoch", "block", "best_step" and "best_loss". Errors: SL_ERR_NOT_FOUND
 * where the state has no such number (a best_loss before the first validation is null). */
sl_status sl_checkpoint_number(const sl_checkpoint_reader *reader, const char *key, double *out);

/* Its files but state.json, those of a part one after the other. */
size_t sl_checkpoint_file_count(const sl_checkpoint_reader *reader);
const sl_checkpoint_file_info *sl_checkpoint_file_get(const sl_checkpoint_reader *reader,
                                                      size_t index);

/* How many tensors a part has in all its files, 0 where there is no such part; each of them. A
 * tensor whose elements several ranks have saved (docs/checkpoints.md) is one tensor here. */
size_t sl_checkpoint_tensor_count(const sl_checkpoint_reader *reader, const char *part);
const sl_safetensors_info *sl_checkpoint_tensor_get(const sl_checkpoint_reader *reader,
                                                    const char *part, size_t index);

/* Reads every byte of every file and compares the checksums, where there are any. */
sl_status sl_checkpoint_verify(const sl_checkpoint_reader *reader);

/* Reads a part's tensors into `items` (borrowed), which must be exactly those of the part, in any
 * order, and compares the checksums of its files on the way. Errors: SL_ERR_NOT_FOUND (no such
 * part) or SL_ERR_INVALID naming missing and unexpected tensors or one that does not fit, before
 * any byte is written to memory; SL_ERR_FORMAT for damage, SL_ERR_IO: the items' values are then
 * undefined. */
sl_status sl_checkpoint_read(const sl_checkpoint_reader *reader, const char *part,
                             const sl_safetensors_item *items, size_t count);

/* ---- Reading to devices ----------------------------------------------------------------- */

typedef struct sl_checkpoint_tensor {
    const char *name; /* the reader's */
    sl_tensor *tensor;
} sl_checkpoint_tensor;

/* Counterpart of torch.load's map_location: reads a part's tensors, each to the device that
 * `device_of` gives for its name. Tensors for which it gives NULL are left out, and no other device
 * is touched: so each rank of several loads its own. *out [*count] is in the part's order.
 * Errors as sl_checkpoint_read; SL_ERR_UNSUPPORTED for data types that sluice does not have and for
 * more than SL_MAX_DIMS dimensions. */
sl_status sl_checkpoint_load(const sl_checkpoint_reader *reader, const char *part,
                             sl_device *(*device_of)(void *context, const char *name),
                             void *context, sl_checkpoint_tensor **out, size_t *count);
void sl_checkpoint_tensors_destroy(sl_checkpoint_tensor **tensors, size_t count);

/* ---- Checkpoints from checkpoints ------------------------------------------------------- */

/* Copies the checkpoint or model `from` to `to`, which must not exist, with files of another size
 * (sl_checkpoint_contents.shard_bytes). Compares its checksums first; memory holds one tensor at a
 * time. Errors: SL_ERR_INVALID, those of reading and saving. */
sl_status sl_checkpoint_convert(const char *from, const char *to, uint64_t shard_bytes);

/* Saves the mean of the parts "model" of `count` checkpoints as `to`, which must not exist: each
 * element's sum in double precision, in the order given. Other files are the first one's; there is
 * no optimizer, and no run can resume from it. Checksums and memory as in sl_checkpoint_convert.
 * Errors: SL_ERR_INVALID where tensors differ in names or shapes, or are not F32; those of reading
 * and saving. */
sl_status sl_checkpoint_average(const char *const *from, size_t count, const char *to,
                                uint64_t shard_bytes);

SL_API_END

#endif
