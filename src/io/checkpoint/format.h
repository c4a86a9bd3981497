/* Checkpoints, for the library's own files: what sluice/checkpoint.h does not have. */
#ifndef SLI_IO_CHECKPOINT_FORMAT_H
#define SLI_IO_CHECKPOINT_FORMAT_H

#include "core/error.h"
#include "io/safetensors/format.h"
#include "sluice/checkpoint.h"

/* ---- state.json (state.c) ----
 *
 *   {"format": "sluice checkpoint", "format_version": 1, "version": "0.1.0",
 *    "id": "93c1…",                          of this checkpoint; every tensor file says it as well
 *    "files": [{"name": "model.safetensors", "part": "model", "bytes": 96, "xxh128": "…"}, …],
 *    "run": {…},                             what the caller gave
 *    "xxh128": "…"}                          of the members before it as they stand there, as an
 *                                            object, but for the blanks outside of strings
 */

#define SLI_CHECKPOINT_STATE "state.json"
/* The keys of a tensor file's metadata that hold the checkpoint's id, and in a model that is none
 * the version of sluice that saved it. */
#define SLI_CHECKPOINT_ID_KEY "sluice.checkpoint"
#define SLI_MODEL_VERSION_KEY "sluice.version"

enum { SLI_CHECKPOINT_ID_BYTES = 17 };

typedef struct sli_checkpoint_state {
    char *strings; /* all but `run` */
    const char *id, *version;
    char *run;                      /* without blanks */
    sl_checkpoint_file_info *files; /* [count] */
    size_t count;
} sli_checkpoint_state;

/* Whether a file of a checkpoint can have this name: none of a path, of a hidden file or of the
 * state. */
bool sli_checkpoint_is_plain_name(const char *name);

/* Prints a state; `*text` is malloc'ed. `files` (borrowed) is the array above. Errors:
 * SL_ERR_INVALID where `run` is no JSON object. */
sl_status sli_checkpoint_state_print(const char *id, const char *run, json_t *files, char **text);

/* Reads one. Cleared by sli_checkpoint_state_clear, also after an error. Errors: SL_ERR_FORMAT with
 * one sentence. */
sl_status sli_checkpoint_state_parse(const char *text, size_t length, sli_checkpoint_state *out);
void sli_checkpoint_state_clear(sli_checkpoint_state *state);

/* Reads that of the checkpoint in a directory, without its tensors; cleared likewise. Errors:
 * SL_ERR_NOT_FOUND, SL_ERR_FORMAT, SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sli_checkpoint_state_read(const char *directory, sli_checkpoint_state *out);

/* ---- Segments (tensors.c) ----
 *
 * A tensor whose elements lie in several files, because no rank had all of them.
 *
 *     0.weight.exp_avg  [200, 512], row by row
 *     |------------------------------|----------------------|------------------|
 *     0.weight.exp_avg@0             0.weight.exp_avg@40960 0.weight.exp_avg@80112
 *
 * A segment is a tensor of one dimension in a file, named after the tensor and its first element.
 * The shapes of the tensors are in the file's metadata under "sluice.segments":
 *
 *     {"0.weight.exp_avg": [200, 512], …}
 *
 * Only what is listed there has segments; any other name with an @ is a tensor's own. */

#define SLI_SEGMENTS_KEY "sluice.segments"

/* A tensor with segments. */
typedef struct sli_cut_tensor {
    const char *name;
    sl_shape shape;
} sli_cut_tensor;

typedef struct sli_cut_tensors {
    char *names;
    sli_cut_tensor *tensors; /* [count], by name */
    size_t count;
} sli_cut_tensors;

/* Reads the value of the metadata. Cleared by sli_cut_tensors_clear, also after an error. Errors:
 * SL_ERR_FORMAT with one sentence. */
sl_status sli_cut_tensors_parse(const char *text, sli_cut_tensors *out);
void sli_cut_tensors_clear(sli_cut_tensors *cut);

/* The tensor that `name` is a segment of, and the segment's first element; NULL where it is none.
 */
const sli_cut_tensor *sli_cut_tensors_find(const sli_cut_tensors *cut, const char *name,
                                           int64_t *begin);

/* ---- An open checkpoint (reader.c) ----
 *
 * A list of files, and the tensors of each part joined from its files. A model without a state.json
 * is read by the same functions, as a checkpoint of one part without checksums. */

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

typedef struct sli_checkpoint_tensors {
    const char *part;
    sli_checkpoint_entry *tensors; /* [count], by name */
    size_t *order;                 /* [count]: the tensors, as their first segments lie in files */
    size_t count;
    sli_segment *segments; /* [segment_count], file by file in the order of their bytes */
    sli_segment **by_name; /* [segment_count], by the tensor's name and their elements */
    size_t segment_count;
} sli_checkpoint_tensors;

/* A file of the state; without `reader` it has no tensors. */
typedef struct sli_checkpoint_file {
    sli_safetensors_reader *reader;
    char
        *text; /* of a file that has neither tensors nor a checksum, as it was when it was opened */
    int descriptor; /* of a file with a checksum and without tensors; -1: it is read by its path */
    sli_cut_tensors cut;
    const sli_segment *segments; /* [tensors of the file], of its part's */
} sli_checkpoint_file;

struct sl_checkpoint_reader {
    char *path;                 /* as the caller gave it */
    sli_checkpoint_state state; /* `id` NULL: there is no state.json, and no file has a checksum */
    sl_metadata *index;         /* [index_count]: of a model with an index, each tensor's file */
    size_t index_count;
    sli_checkpoint_file *files;                             /* [state.count] */
    sli_checkpoint_tensors parts[SL_CHECKPOINT_MOST_PARTS]; /* [part_count] */
    size_t part_count;
    bool is_llmc;         /* a file of llm.c's, whose weights of layers are [out, in] */
    bool is_config_alone; /* a model's directory without weights */
};

#define SLI_MODEL_PART   "model"
#define SLI_ADAPTER_PART "adapter_model" /* of a directory that has an adapter alone */

/* The files without tensors of a model's directory that is no checkpoint; then NULL. */
extern const char *const sli_model_file_names[];

/* Hugging Face's index of a model in several files:
 *
 *   {"metadata": {"total_size": 4096}, "weight_map": {"0.weight": "NAME-00001-of-00002.…", …}}
 *
 * `entries` [*count] begins as NULL; each tensor is a key, its file the value, both in `strings`.
 * Both are to be freed, also after an error. Errors: SL_ERR_FORMAT with one sentence. */
sl_status sli_safetensors_index_parse(const char *text, size_t length, char **strings,
                                      sl_metadata **entries, size_t *count);

/* Opens a model's file of llm.c (io/llmc/llmc.h) as a model with a config.json. Errors: those of
 * sl_checkpoint_open. */
sl_status sli_checkpoint_open_llmc(const char *path, sl_checkpoint_reader **out);

/* sl_checkpoint_open that also opens a model's config.json, by its path or its directory's where
 * that has no weights, with the files without tensors beside it. */
sl_status sli_checkpoint_open_config(const char *path, sl_checkpoint_reader **out);

/* The path of file `index`, malloc'ed. */
sl_status sli_checkpoint_file_path(const sl_checkpoint_reader *reader, size_t index, char **out);

/* Whether file `index` has tensors of the part. */
bool sli_checkpoint_has_tensors(const sl_checkpoint_reader *reader, size_t index, const char *part);

/* ---- Its tensors (tensors.c) ---- */

/* Joins the tensors of the open files that belong to the part `name`. Errors: SL_ERR_FORMAT where
 * segments do not make up their tensor. */
sl_status sli_checkpoint_join_part(sl_checkpoint_reader *reader, const char *name);

/* The part's tensors. Errors: SL_ERR_NOT_FOUND where there is no such part. */
sl_status sli_checkpoint_need_part(const sl_checkpoint_reader *reader, const char *part,
                                   const sli_checkpoint_tensors **out);

/* The tensor of that name of the part, or NULL. */
const sli_checkpoint_entry *sli_checkpoint_find_tensor(const sl_checkpoint_reader *reader,
                                                       const char *part, const char *name);

/* Has the tensor the item's data type and shape? Any tensor fits an item of -1 dimensions without
 * data, which is not read. */
bool sli_checkpoint_fits(const sl_safetensors_info *info, const sl_safetensors_item *item);

/* The tensor as an item without data. Errors: SL_ERR_UNSUPPORTED where sluice has no such tensors.
 */
sl_status sli_checkpoint_describe(const sl_safetensors_info *info, sl_safetensors_item *out);

/* Begins the error's sentence with the path and, in a checkpoint, the part. */
sl_status sli_checkpoint_part_error(const sl_checkpoint_reader *reader, const char *part,
                                    sl_status status);

/* ---- Reading (read.c) ---- */

/* Reads elements first … first + count - 1 of a tensor, whatever files they are in. Compares no
 * checksums, which are of whole files: sl_checkpoint_verify comes first. */
sl_status sli_checkpoint_read_elements(const sl_checkpoint_reader *reader,
                                       const sli_checkpoint_entry *tensor, int64_t first,
                                       int64_t count, void *out);

/* Sets *data to the place of a tensor of at least one byte in a file's map, which the reader holds.
 * Reading an item with this data loads the pages instead of copying. NULL: the tensor is in several
 * files or not aligned, or the file cannot be mapped. Errors: those of a descriptor. */
sl_status sli_checkpoint_map(const sl_checkpoint_reader *reader, const sli_checkpoint_entry *tensor,
                             sli_file_map **map, void **data);

/* Ends reading to places in the files' maps: from here on they belong to who mapped. */
void sli_checkpoint_end_maps(const sl_checkpoint_reader *reader);

/* sl_checkpoint_read of some of the part's tensors, which fit the items. An item without data is
 * not read. */
sl_status sli_checkpoint_read_items(const sl_checkpoint_reader *reader, const char *part,
                                    const sl_safetensors_item *items, size_t count);

/* Reads every byte of the part's files with tensors and compares the checksums. */
sl_status sli_checkpoint_verify_part(const sl_checkpoint_reader *reader, const char *part);

/* Whether `items`, whose data are not looked at, are exactly the part's tensors: the errors of
 * sl_checkpoint_read. */
sl_status sli_checkpoint_check_items(const sl_checkpoint_reader *reader, const char *part,
                                     const sl_safetensors_item *items, size_t count);

/* ---- Writing (writer.c) ---- */

/* A part's files: of several ranks each writes one, PART-0000N-of-0000C.safetensors, with the
 * tensors that it has or segments of them. */
typedef struct sli_checkpoint_shard {
    int number; /* this rank's, from 1; 0: it has none */
    int count;  /* 1: rank 0 writes all of the part */
} sli_checkpoint_shard;

enum { SLI_CHECKPOINT_MOST_SHARDS = 3 }; /* parts of a checkpoint that several ranks write */

/* What rank 0 must know of the files that a rank has written. */
typedef struct sli_shard_report {
    sli_written_file files[SLI_CHECKPOINT_MOST_SHARDS];
    int64_t numbers[SLI_CHECKPOINT_MOST_SHARDS]; /* of the files; 0: there is none */
    sli_error_copy error;
} sli_shard_report;

/* How a checkpoint is saved; all zeros: by one rank, from items with data.
 *
 * Several ranks that see the same directory can save one checkpoint together. All give the same
 * path, id and parts, each with the tensors that it has; rank 0 alone the other contents:
 *
 *     rank 0    its files    gather    list all ranks' files, indexes, state.json, rename
 *     rank 1    its files    gather
 *     rank 2    its files    gather
 */
typedef struct sli_checkpoint_writing {
    const sli_item_source *source;      /* NULL: the items have data */
    uint64_t id;                        /* 0: is drawn */
    const sli_checkpoint_shard *shards; /* [parts]; NULL: rank 0 writes all */
    int rank, ranks;
    bool is_model; /* a directory without state.json */
    bool is_new;   /* nothing is replaced */
    /* Of several ranks: fills rank 0's all [ranks] with every rank's report. Every rank calls it
     * once, also after an error. */
    sl_status (*gather)(void *context, const sli_shard_report *own);
    void *context;
    const sli_shard_report *all;
} sli_checkpoint_writing;

/* sl_checkpoint_save, in this way. Any rank's error is rank 0's too. */
sl_status sli_checkpoint_write(const char *path, const sl_checkpoint_contents *contents,
                               const sli_checkpoint_writing *settings);

/* Makes a whole tensor the segment of it that begins at element `first` and has `count` elements:
 * gives it a new name, malloc'ed, and adds the shape that it had to `shapes`, which a shard's
 * metadata say under SLI_SEGMENTS_KEY. Errors: SL_ERR_MEMORY. */
sl_status sli_checkpoint_make_segment(sl_safetensors_item *item, int64_t first, int64_t count,
                                      json_t *shapes);

/* Refuses a path that a checkpoint cannot have: there may be an older checkpoint, a link to one or
 * an empty directory, and where `is_new` nothing. Where `is_model`, there may be a model's
 * directory that sluice has saved, in which nothing else lies. Errors: SL_ERR_INVALID,
 * SL_ERR_NOT_FOUND. */
sl_status sli_checkpoint_check_path(const char *path, bool is_model, bool is_new);

/* Refuses a path in a checkpoint, for a file or a directory, or that of a checkpoint where
 * `is_directory`, for one that gets files: nothing but what its state.json lists belongs there.
 * Errors: SL_ERR_INVALID, SL_ERR_MEMORY. */
sl_status sli_checkpoint_check_outside(const char *path, bool is_directory);

/* Reads a file that belongs to no part; *data is malloc'ed, with a 0 behind its *bytes. Errors:
 * SL_ERR_NOT_FOUND, SL_ERR_FORMAT for damage, SL_ERR_IO. */
sl_status sli_checkpoint_read_file(const sl_checkpoint_reader *reader, const char *name,
                                   char **data, size_t *bytes);

/* The value of a key of the metadata of a part's files, or NULL. */
const char *sli_checkpoint_metadata(const sl_checkpoint_reader *reader, const char *part,
                                    const char *key);

#endif
