/* An open checkpoint, as the functions that read it see it. */
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

/* A part's tensors are in the order of their first segments, its segments file by file. */
typedef struct sli_checkpoint_tensors {
    const char *part;
    sli_checkpoint_entry *tensors; /* [count] */
    size_t count;
    sli_segment **by_name; /* [segment_count], by the tensor's name and their elements */
    size_t segment_count;
} sli_checkpoint_tensors;

/* A file of the state; without `reader` it has no tensors. */
typedef struct sli_checkpoint_file {
    sl_safetensors_reader *reader;
    sli_cut_tensors cut;
    sli_segment *segments; /* [tensors of the file], in the order of their bytes */
} sli_checkpoint_file;

struct sl_checkpoint_reader {
    char *path;
    sli_checkpoint_state state;
    sli_checkpoint_file *files; /* [state.count] */
    sli_checkpoint_tensors parts[SL_CHECKPOINT_MOST_PARTS];
    size_t part_count;
    /* What the above point to, of all parts: */
    sli_segment *segments, **by_name;
    sli_checkpoint_entry *tensors;
};

/* Fills `parts` from the open `files`. Errors: SL_ERR_FORMAT where segments do not make up their
 * tensor. */
sl_status sli_checkpoint_list_tensors(sl_checkpoint_reader *reader);

/* Whether file `index` has tensors of the part. */
bool sli_checkpoint_has_tensors(const sl_checkpoint_reader *reader, size_t index, const char *part);

/* The part's tensors; the second gives SL_ERR_NOT_FOUND instead of NULL. */
const sli_checkpoint_tensors *sli_checkpoint_find_part(const sl_checkpoint_reader *reader,
                                                       const char *part);
sl_status sli_checkpoint_need_part(const sl_checkpoint_reader *reader, const char *part,
                                   const sli_checkpoint_tensors **out);

/* Reads elements first … first + count - 1 of a tensor that the part has, whatever files they are
 * in. Compares no checksums, which are of whole files: sl_checkpoint_verify comes first. */
sl_status sli_checkpoint_read_elements(const sl_checkpoint_reader *reader, const char *part,
                                       const char *name, int64_t first, int64_t count, void *to);

/* The tensor of that name, or NULL. */
const sli_checkpoint_entry *sli_checkpoint_find_tensor(const sli_checkpoint_tensors *in,
                                                       const char *name);

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
