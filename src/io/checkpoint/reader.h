/* An open checkpoint, as the functions that read it see it. */
#ifndef SLI_IO_CHECKPOINT_READER_H
#define SLI_IO_CHECKPOINT_READER_H

#include "io/checkpoint/state.h"

#include <stdbool.h>

/* A tensor of a part: as a file has it, or joined from slices (io/checkpoint/slices.h). */
typedef struct sli_checkpoint_entry {
    sl_safetensors_info info;
    char *joined_name; /* NULL: the name is the file's */
    int64_t joined_size[SL_MAX_DIMS];
} sli_checkpoint_entry;

/* Where the bytes of a file's tensor belong: to a tensor of the checkpoint, from its byte `offset`
 * on. */
typedef struct sli_checkpoint_place {
    size_t tensor;
    uint64_t offset;
} sli_checkpoint_place;

/* A part's tensors are those from `first` on: the ones that are in one piece, in the order of the
 * files, and then the joined ones by name. */
typedef struct sli_checkpoint_range {
    const char *part;
    size_t first, count;
} sli_checkpoint_range;

struct sl_checkpoint_reader {
    char *path;
    sli_checkpoint_state state;
    sl_safetensors_reader **shards; /* [state.count]; NULL for files without tensors */
    sli_checkpoint_place **places;  /* [state.count][tensors of the shard]; NULL as these */
    sli_checkpoint_entry *tensors;  /* [tensor_count] */
    size_t tensor_count;
    sli_checkpoint_range *parts; /* [part_count] */
    size_t part_count;
};

/* Whether file `index` has tensors of the part. */
bool sli_checkpoint_is_shard(const sl_checkpoint_reader *reader, size_t index, const char *part);

/* The part's tensors, or NULL. */
const sli_checkpoint_range *sli_checkpoint_range_of(const sl_checkpoint_reader *reader,
                                                    const char *part);

/* Lists all files' tensors, slices joined, into `tensors`, `places` and `parts`; freed by the
 * second, also after an error. Errors: SL_ERR_FORMAT where slices do not make up their tensor. */
sl_status sli_checkpoint_list_tensors(sl_checkpoint_reader *reader);
void sli_checkpoint_free_tensors(sl_checkpoint_reader *reader);

/* Reads a file of text, of at most `most` bytes; *data is malloc'ed, with a 0 behind its *bytes. */
enum { SLI_CHECKPOINT_MOST_TEXT = 64 << 20 };
sl_status sli_checkpoint_read_text(const char *path, uint64_t most, char **data, size_t *bytes);

/* sl_checkpoint_read_file of file `index`, which has no tensors. */
sl_status sli_checkpoint_read_listed(const sl_checkpoint_reader *reader, size_t index, char **data,
                                     size_t *bytes);

/* "PATH/NAME"; malloc'ed. */
sl_status sli_checkpoint_path(const char *path, const char *name, char **out);

/* The bytes begin … end - 1 of a tensor go to `memory`; NULL: none of them. */
typedef struct sli_checkpoint_target {
    char *memory;
    uint64_t begin, end;
} sli_checkpoint_target;

/* Reads file `index` from its first byte to its last and compares its checksum. Where it has
 * tensors, find(context, tensor) says what becomes of that tensor of the checkpoint, of which the
 * file may have a slice. `find` may be NULL: nobody wants anything. */
typedef sli_checkpoint_target (*sli_checkpoint_find)(void *context, size_t tensor);
sl_status sli_checkpoint_stream(const sl_checkpoint_reader *reader, size_t index,
                                sli_checkpoint_find find, void *context);

/* Elements begin … begin + count - 1 of a tensor, row by row, whatever slices the files have. */
typedef struct sli_checkpoint_slice {
    const char *tensor;
    sl_dtype dtype;
    sl_shape shape; /* the tensor's */
    int64_t begin, count;
    void *data;
} sli_checkpoint_slice;

/* sl_checkpoint_read for slices, one (which may be empty) of each of the part's tensors. Files that
 * have nothing of them are not read. */
sl_status sli_checkpoint_read_slices(const sl_checkpoint_reader *reader, const char *part,
                                     const sli_checkpoint_slice *slices, size_t count);

/* Whether `items`, whose data are not looked at, are exactly the part's tensors: the errors of
 * sl_checkpoint_read. */
sl_status sli_checkpoint_check_items(const sl_checkpoint_reader *reader, const char *part,
                                     const sl_safetensors_item *items, size_t count);

/* Reads every byte of the part's files with tensors and compares the checksums. */
sl_status sli_checkpoint_verify_part(const sl_checkpoint_reader *reader, const char *part);

#endif
