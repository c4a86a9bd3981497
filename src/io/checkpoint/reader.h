/* An open checkpoint, as the functions that read it see it. A model without a state.json is read by
 * the same functions, as a checkpoint of one part without checksums. */
#ifndef SLI_IO_CHECKPOINT_READER_H
#define SLI_IO_CHECKPOINT_READER_H

#include "io/checkpoint/segments.h"
#include "io/checkpoint/state.h"

/* What one file has of a tensor. */
typedef struct sli_segment {
    const sl_safetensors_info *info; /* as the file says */
    const sli_cut_tensor *cut;       /* the whole tensor; NULL: this is the whole tensor */
    int64_t begin;                   /* its first element in the tensor */
    uint64_t offset;                 /* its first byte in the tensor */
    size_t file, tensor;             /* the state's file, and the part's tensor */
} sli_segment;

/* A tensor of a part, in one file or in several. */
typedef struct sli_checkpoint_entry {
    sl_safetensors_info info;
    sli_segment **segments; /* [count], by their elements */
    size_t count;
} sli_checkpoint_entry;

/* A part's tensors are in the order of their first segments. */
typedef struct sli_checkpoint_tensors {
    const char *part;
    sli_checkpoint_entry *tensors; /* [count] */
    size_t count;
    sli_segment *segments; /* [segment_count], file by file in the order of their bytes */
    sli_segment **by_name; /* [segment_count], by the tensor's name and their elements */
    size_t segment_count;
} sli_checkpoint_tensors;

/* A file of the state; without `reader` it has no tensors. */
typedef struct sli_checkpoint_file {
    sl_safetensors_reader *reader;
    sli_cut_tensors cut;
    const sli_segment *segments; /* [tensors of the file], of its part's */
} sli_checkpoint_file;

struct sl_checkpoint_reader {
    char *path;                 /* as the caller gave it */
    char *folder;               /* what comes before the names of its files, with the slash */
    sli_checkpoint_state state; /* `id` NULL: there is no state.json, and no file has a checksum */
    sli_checkpoint_file *files; /* [state.count] */
    sli_checkpoint_tensors parts[SL_CHECKPOINT_MOST_PARTS]; /* [part_count] */
    size_t part_count;
};

/* ---- Opening (reader.c, model.c) ---- */

/* Opens what `open_files` lists: it fills `folder` and `state`, and calls
 * sli_checkpoint_open_files. */
sl_status sli_checkpoint_open_by(const char *path,
                                 sl_status (*open_files)(sl_checkpoint_reader *reader),
                                 sl_checkpoint_reader **out);
sl_status sli_checkpoint_open_files(sl_checkpoint_reader *reader);

#define SLI_MODEL_PART "model"

/* Opens a model, whatever it lies in on disk:
 *
 *     model.safetensors                  a file
 *     model.safetensors.index.json       Hugging Face's index, the files of which lie beside it
 *     DIR                                a checkpoint, of which the part "model" is read, or a
 *                                        directory with one of the above
 *
 * Its tensors are those of the part SLI_MODEL_PART. Errors as sl_safetensors_open and
 * sl_checkpoint_open; SL_ERR_FORMAT for an index that does not fit. */
sl_status sli_checkpoint_open_model(const char *path, sl_checkpoint_reader **out);

/* ---- Hugging Face's index of a model in several files (model.c) ----
 *
 *   {"metadata": {"total_size": 4096}, "weight_map": {"0.weight": "NAME-00001-of-00002.…", …}} */

typedef struct sli_safetensors_index {
    char *strings;        /* of the entries */
    sl_metadata *entries; /* [count]: the file of each tensor, in the order of the tensors' names */
    size_t count;
} sli_safetensors_index;

/* Reads one. Errors: SL_ERR_FORMAT with one sentence. */
sl_status sli_safetensors_index_parse(const char *text, size_t length, sli_safetensors_index *out);
void sli_safetensors_index_clear(sli_safetensors_index *index);

/* The file that holds the tensor, or NULL; it lives as long as the index. */
const char *sli_safetensors_index_find(const sli_safetensors_index *index, const char *tensor);

/* ---- Tensors (tensors.c) ---- */

/* Lists the tensors of the open files that belong to the part. Errors: SL_ERR_FORMAT where segments
 * do not make up their tensor. */
sl_status sli_checkpoint_list_part(sl_checkpoint_reader *reader, const char *part);

/* Whether file `index` has tensors of the part. */
bool sli_checkpoint_has_tensors(const sl_checkpoint_reader *reader, size_t index, const char *part);

/* The part's tensors, or NULL; the second gives SL_ERR_NOT_FOUND instead. */
const sli_checkpoint_tensors *sli_checkpoint_find_part(const sl_checkpoint_reader *reader,
                                                       const char *part);
sl_status sli_checkpoint_need_part(const sl_checkpoint_reader *reader, const char *part,
                                   const sli_checkpoint_tensors **out);

/* The tensor of that name, or NULL. */
const sli_checkpoint_entry *sli_checkpoint_find_tensor(const sli_checkpoint_tensors *in,
                                                       const char *name);

/* Compares items with the part's tensors: they must be exactly these, in any order. of [tensors of
 * the part] gets each tensor's item. Errors: SL_ERR_INVALID naming the tensors that are missing and
 * unexpected (the first few of each, and how many), or the first one whose shape or data type
 * differs, with both. */
sl_status sli_checkpoint_match(const sli_checkpoint_tensors *in, const sl_safetensors_item *items,
                               size_t count, const sl_safetensors_item **of);

/* Begins the error's sentence with the path and, in a checkpoint, the part. */
sl_status sli_checkpoint_part_error(const sl_checkpoint_reader *reader, const char *part,
                                    sl_status status);

/* ---- Reading (read.c) ---- */

/* Reads elements first … first + count - 1 of a tensor that the part has, whatever files they are
 * in. Compares no checksums, which are of whole files: sl_checkpoint_verify comes first. */
sl_status sli_checkpoint_read_elements(const sl_checkpoint_reader *reader, const char *part,
                                       const char *name, int64_t first, int64_t count, void *to);

/* Reads every byte of the part's files with tensors and compares the checksums. */
sl_status sli_checkpoint_verify_part(const sl_checkpoint_reader *reader, const char *part);

/* The tensor as an item without data. Errors: SL_ERR_UNSUPPORTED where sluice has no such tensors.
 */
sl_status sli_checkpoint_describe(const sl_safetensors_info *info, sl_safetensors_item *out);

/* Whether `items`, whose data are not looked at, are exactly the part's tensors: the errors of
 * sl_checkpoint_read. */
sl_status sli_checkpoint_check_items(const sl_checkpoint_reader *reader, const char *part,
                                     const sl_safetensors_item *items, size_t count);

/* The most bytes that a file of text may have. */
enum { SLI_CHECKPOINT_MOST_TEXT = 64 << 20 };

/* sl_checkpoint_read_file of file `index`, which has no tensors. */
sl_status sli_checkpoint_read_listed(const sl_checkpoint_reader *reader, size_t index, char **data,
                                     size_t *bytes);

#endif
