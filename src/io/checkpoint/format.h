/* Checkpoints, for the library's own files: what sluice/checkpoint.h does not have. */
#ifndef SLI_IO_CHECKPOINT_FORMAT_H
#define SLI_IO_CHECKPOINT_FORMAT_H

#include "core/checksum.h"
#include "io/safetensors/format.h"
#include "sluice/checkpoint.h"

/* ---- state.json (state.c) ----
 *
 *   {"format": "sluice checkpoint", "format_version": 1, "version": "0.1.0",
 *    "id": "93c1…",                          of this checkpoint; every tensor file says it as well
 *    "files": [{"name": "model.safetensors", "part": "model", "bytes": 96, "xxh128": "…"}, …],
 *    "run": {…},                             what the caller gave
 *    "xxh128": "…"}                          of all the other members as they stand there, but for
 *                                            the blanks outside of strings
 */

#define SLI_CHECKPOINT_STATE "state.json"
/* The key of a tensor file's metadata that holds the id. */
#define SLI_CHECKPOINT_ID_KEY "sluice.checkpoint"

#define SLI_CHECKPOINT_CHECKSUM_KEY "xxh128"

enum { SLI_CHECKPOINT_ID_BYTES = 17 };

typedef struct sli_checkpoint_state {
    char *strings; /* all but `run` */
    const char *id, *version;
    char *run;                      /* without blanks */
    sl_checkpoint_file_info *files; /* [count] */
    size_t count;
    const char *parts[SL_CHECKPOINT_MOST_PARTS]; /* [part_count] that they belong to */
    size_t part_count;
} sli_checkpoint_state;

/* Prints one; `*text` is malloc'ed. `files` (borrowed) is the array above. Errors: SL_ERR_INVALID
 * where `run` is no JSON object. */
sl_status sli_checkpoint_state_print(const char *id, const char *run, json_t *files, char **text);

/* Reads one. Errors: SL_ERR_FORMAT with one sentence. */
sl_status sli_checkpoint_state_parse(const char *text, size_t length, sli_checkpoint_state *out);
void sli_checkpoint_state_clear(sli_checkpoint_state *state);

/* ---- Segments (segments.c) ----
 *
 * A tensor whose elements lie in several files, because no rank had all of them.
 *
 *     0.weight.exp_avg  [200, 512], row by row
 *     |------------------------------|----------------------|------------------|
 *     0.weight.exp_avg@0             0.weight.exp_avg@40960 0.weight.exp_avg@80112
 *
 * A segment is a tensor of one dimension in a file, named after the tensor and its first element.
 * The shapes of the tensors are in the file's metadata under "sluice.slices":
 *
 *     {"0.weight.exp_avg": [200, 512], …}
 *
 * Only what is listed there has segments; any other name with an @ is a tensor's own. */

#define SLI_SEGMENTS_KEY "sluice.slices"

/* A tensor with segments. */
typedef struct sli_cut_tensor {
    const char *name;
    sl_shape shape;
} sli_cut_tensor;

/* "NAME@BEGIN", malloc'ed. */
sl_status sli_segment_name(const char *tensor, int64_t begin, char **out);

/* The value of the metadata, malloc'ed. */
sl_status sli_cut_tensors_print(const sli_cut_tensor *tensors, size_t count, char **text);

typedef struct sli_cut_tensors {
    char *names;
    sli_cut_tensor *tensors; /* [count], by name */
    size_t count;
} sli_cut_tensors;

/* Reads it. Errors: SL_ERR_FORMAT with one sentence. Cleared by sli_cut_tensors_clear, also after
 * an error. */
sl_status sli_cut_tensors_parse(const char *text, sli_cut_tensors *out);
void sli_cut_tensors_clear(sli_cut_tensors *cut);

/* The tensor that `name` is a segment of, and the segment's first element; NULL where it is none.
 */
const sli_cut_tensor *sli_cut_tensors_find(const sli_cut_tensors *cut, const char *name,
                                           int64_t *begin);

/* ---- An open checkpoint ----
 *
 * A model without a state.json is read by the same functions, as a checkpoint of one part without
 * checksums. */

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

/* Lists the tensors of the open files that belong to the part `name`. Errors: SL_ERR_FORMAT where
 * segments do not make up their tensor. */
sl_status sli_checkpoint_list_part(sl_checkpoint_reader *reader, const char *name);

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

/* ---- Writing (writer.c) ----
 *
 * Saving step by step: by one writer, or by several that see the same directory, as ranks that each
 * have a shard of an optimizer's state.
 *
 *     writer 0                                  writers 1, 2, …
 *     create                                    create, joining   the same path and id
 *     add        what no other writer has
 *     add_shard  its own shard                  add_shard         theirs
 *                                               destroy
 *     list_shard after all have ended, each of theirs
 *     commit
 *     destroy
 */

typedef struct sli_checkpoint_writer sli_checkpoint_writer;

/* What a writer tells writer 0 of its shard's file. */
typedef struct sli_checkpoint_written {
    uint64_t bytes;
    char checksum[SLI_CHECKSUM_BYTES];
} sli_checkpoint_written;

/* Where the bytes of items come from whose data are not in memory. They are asked for one after the
 * other; *data lives until the next is. */
typedef struct sli_checkpoint_source {
    sl_status (*read)(void *context, const char *part, const sl_safetensors_item *item,
                      const void **data);
    void *context;
} sli_checkpoint_source;

/* sl_checkpoint_save of items without data. */
sl_status sli_checkpoint_save_from(const char *path, const sl_checkpoint_contents *contents,
                                   const sli_checkpoint_source *source);

/* Refuses a path that a checkpoint cannot have: there may be an older checkpoint, a link to one or
 * an empty directory, and where `is_new` nothing. Errors: SL_ERR_INVALID, SL_ERR_NOT_FOUND. */
sl_status sli_checkpoint_check_path(const char *path, bool is_new);

/* An older checkpoint at `path` may be replaced, but nothing else. `joins`: as one of writers 1, 2,
 * … Errors as sl_checkpoint_save. */
sl_status sli_checkpoint_writer_create(const char *path, uint64_t id, bool joins,
                                       sli_checkpoint_writer **out);

/* Parts and files, without the state. The parts' names are borrowed until the commit. `source`
 * NULL: the items have data. */
sl_status sli_checkpoint_writer_add(sli_checkpoint_writer *writer,
                                    const sl_checkpoint_contents *contents,
                                    const sli_checkpoint_source *source);

/* What rank `rank` of `ranks` has of a part, as PART-0000R-of-0000N.safetensors with R from 1. The
 * file is on disk then. */
sl_status sli_checkpoint_writer_add_shard(sli_checkpoint_writer *writer,
                                          const sl_checkpoint_part *part, int rank, int ranks,
                                          sli_checkpoint_written *written);

/* Lists another's shard. Errors: SL_ERR_IO where its file is not there as told, as where the
 * directory is another one. */
sl_status sli_checkpoint_writer_list_shard(sli_checkpoint_writer *writer, const char *part,
                                           int rank, int ranks,
                                           const sli_checkpoint_written *written);

/* The checkpoint is complete: it takes its name. `state` as in sl_checkpoint_contents. */
sl_status sli_checkpoint_writer_commit(sli_checkpoint_writer *writer, const char *state);

/* Writer 0's removes what it did not commit; NULL is allowed. */
void sli_checkpoint_writer_destroy(sli_checkpoint_writer **writer);

#endif
