/* Safetensors files inside the library, beyond sluice/safetensors.h. */
#ifndef SLI_IO_SAFETENSORS_FORMAT_H
#define SLI_IO_SAFETENSORS_FORMAT_H

#include "core/checksum.h"
#include "core/file.h"
#include "core/json.h"
#include "sluice/safetensors.h"

#include <stdatomic.h>
#include <sys/types.h>

/* ---- Data types (format.c) ---- */

typedef struct sli_safetensors_dtype {
    const char *name;
    unsigned bits; /* of one element */
    bool readable; /* sluice has it, as `dtype` */
    sl_dtype dtype;
} sli_safetensors_dtype;

/* The data type of that name, or NULL where the format has none. */
const sli_safetensors_dtype *sli_safetensors_dtype_find(const char *name);

/* How the format names one of sluice's data types; NULL where `dtype` is none. */
const sli_safetensors_dtype *sli_safetensors_dtype_of(sl_dtype dtype);

/* How many bytes a shape of elements of `bits` bits takes. False where the last byte is not full,
 * where the elements' bits are beyond 64 bits, or where sizes beside one that is 0 have a product
 * beyond int64_t: what is accepted can be counted in any order. */
bool sli_safetensors_bytes(int dims, const int64_t *size, unsigned bits, uint64_t *bytes);

/* The bytes of an item of a possible shape. */
uint64_t sli_safetensors_item_bytes(const sl_safetensors_item *item);

/* ---- Names and shapes in error sentences (format.c) ---- */

enum { SLI_QUOTE_BYTES = 96, SLI_SIZES_BYTES = 160 };

/* Writes `name` in double quotes to `text` [SLI_QUOTE_BYTES] and returns it, cut between two
 * characters where it is long. */
const char *sli_safetensors_quote(const char *name, char *text);

/* Writes "[20, 35]" to `text` [SLI_SIZES_BYTES], for any number of dimensions, and returns it. */
const char *sli_safetensors_sizes(int dims, const int64_t *size, char *text);

/* ---- Arrays of structures whose first field is a name (format.c) ---- */

/* Sorts the array by name. Errors: SL_ERR_FORMAT, "WHAT "NAME" is listed twice". */
sl_status sli_names_sort(void *array, size_t count, size_t element_bytes, const char *what);

/* The same of a copy: the array stays in its order. Errors: SL_ERR_MEMORY too. */
sl_status sli_names_check(const void *array, size_t count, size_t element_bytes, const char *what);

/* The element of a sorted array that has this name, or NULL. */
const void *sli_names_find(const void *array, size_t count, size_t element_bytes, const char *name);

/* ---- Readers (reader.c) ---- */

/* An open file. Functions that take it const may be called by several threads at once. */
typedef struct sli_safetensors_reader sli_safetensors_reader;

/* Opens a file and checks its header completely. Errors: SL_ERR_NOT_FOUND, SL_ERR_IO,
 * SL_ERR_MEMORY; SL_ERR_FORMAT with one sentence on what is wrong: a truncated file, a header
 * length that passes the file's end or 100 MB, invalid JSON or UTF-8, a name used twice, an unknown
 * data type, a byte range that does not match shape and data type, ranges that overlap, leave holes
 * or do not end with the file, products that overflow, `__metadata__` other than strings. */
sl_status sli_safetensors_open(const char *path, sli_safetensors_reader **out);

void sli_safetensors_close(sli_safetensors_reader **reader);

size_t sli_safetensors_count(const sli_safetensors_reader *reader);

/* The tensor at `index`, 0 to count - 1, in the order in which their bytes lie in the file. */
const sl_safetensors_info *sli_safetensors_get(const sli_safetensors_reader *reader, size_t index);

/* The tensor of that name, or NULL. */
const sl_safetensors_info *sli_safetensors_find(const sli_safetensors_reader *reader,
                                                const char *name);

/* The value of a key of the file's `__metadata__`, or NULL; it lives as long as the reader. */
const char *sli_safetensors_metadata(const sli_safetensors_reader *reader, const char *key);

/* Reads a tensor's bytes into `to`, which holds `info->bytes`; `info` came from this reader.
 * Errors: SL_ERR_UNSUPPORTED where the tensor is not `readable`, SL_ERR_IO. */
sl_status sli_safetensors_read(const sli_safetensors_reader *reader,
                               const sl_safetensors_info *info, void *to);

/* The reference implementation's limit on the header's length. */
#define SLI_SAFETENSORS_HEADER_LIMIT UINT64_C(100000000)
#define SLI_SAFETENSORS_METADATA_KEY "__metadata__"

typedef struct sli_safetensors_entry {
    sl_safetensors_info info;
    uint64_t begin; /* of its bytes, counted from the header's end */
} sli_safetensors_entry;

typedef struct sli_safetensors_name {
    const char *name;
    const sli_safetensors_entry *entry;
} sli_safetensors_name;

/* The JSON header of a file: a checked table of tensors. */
typedef struct sli_safetensors_header {
    char *strings; /* all names and the metadata's */
    size_t count;
    sli_safetensors_entry *entries; /* [count], in the order of their bytes */
    sli_safetensors_name *by_name;  /* [count], sorted */
    int64_t *sizes;                 /* what every info.size points into */
    sl_metadata *metadata;          /* [metadata_count] */
    size_t metadata_count;
} sli_safetensors_header;

/* Reads and checks the `length` bytes of a header at `text`, for a file with `data_bytes` behind
 * it. Borrows `text`. Cleared by sli_safetensors_header_clear, also after an error. Errors:
 * SL_ERR_FORMAT, SL_ERR_MEMORY. */
sl_status sli_safetensors_header_parse(const char *text, size_t length, uint64_t data_bytes,
                                       sli_safetensors_header *out);
void sli_safetensors_header_clear(sli_safetensors_header *header);

/* Makes header->by_name. Errors: SL_ERR_FORMAT for a name that is there twice, SL_ERR_MEMORY. */
sl_status sli_safetensors_sort_names(sli_safetensors_header *header);

/* Reads an object whose values are strings, called `what` in errors. The strings go to *room, which
 * is moved behind them; out [*count] begins as NULL and is to be freed, also after an error. */
sl_status sli_safetensors_read_strings(const sli_json *json, sli_json_value object,
                                       const char *what, char **room, sl_metadata **out,
                                       size_t *count);

struct sli_safetensors_reader {
    int descriptor; /* -1: closed by sli_safetensors_close_descriptor */
    char *path;
    dev_t device; /* with its inode, which file it was */
    ino_t inode;
    uint64_t file_bytes;
    uint64_t data_begin;         /* in the file: the first tensor's bytes */
    _Atomic(sli_file_map *) map; /* NULL: nothing was mapped yet */
    _Atomic bool map_ended;      /* nothing is read to its place in the map any more */
    sli_safetensors_header header;
};

/* Opens a file without looking into it: who calls fills the header, whose tensors are to follow one
 * another from data_begin to the file's end. Errors: those of sli_file_open, SL_ERR_MEMORY. */
sl_status sli_safetensors_open_file(const char *path, sli_safetensors_reader **out);

/* From here on each read opens the file again. */
void sli_safetensors_close_descriptor(sli_safetensors_reader *reader);

/* A descriptor to read from, to be given back. Errors: SL_ERR_NOT_FOUND and SL_ERR_IO where the
 * file cannot be opened again, or another one has its name. */
sl_status sli_safetensors_borrow_descriptor(const sli_safetensors_reader *reader, int *descriptor);
void sli_safetensors_return_descriptor(const sli_safetensors_reader *reader, int descriptor);

/* As sli_safetensors_read, for bytes offset … offset + bytes - 1 of the tensor. */
sl_status sli_safetensors_read_bytes(const sli_safetensors_reader *reader,
                                     const sl_safetensors_info *info, uint64_t offset,
                                     uint64_t bytes, void *to);

/* Where the tensor is in the file's map, which the reader holds. NULL: it cannot be mapped. Its
 * bytes are read by sli_file_map_load, or as they are touched. One thread may call. Errors: those
 * of a descriptor. */
sl_status sli_safetensors_map(sli_safetensors_reader *reader, const sl_safetensors_info *info,
                              sli_file_map **map, void **data);

/* Who mapped has read: what is in the map is its own from here on, and may differ from the file. */
void sli_safetensors_end_map(sli_safetensors_reader *reader);

/* Reads the file's bytes from `begin` on; where `to` is their place in the map, loads them there
 * until that has ended. */
sl_status sli_safetensors_read_at(const sli_safetensors_reader *reader, int descriptor,
                                  uint64_t begin, void *to, uint64_t bytes);

/* ---- Writers (writer.c) ---- */

/* Gives the bytes of an item whose data are not in memory. Items are asked for one after the other;
 * *data lives until the next is. */
typedef struct sli_item_source {
    sl_status (*read)(void *context, const sl_safetensors_item *item, const void **data);
    void *context;
} sli_item_source;

/* A file that was written. */
typedef struct sli_written_file {
    uint64_t bytes;
    char checksum[SLI_CHECKSUM_BYTES]; /* taken while it was written */
} sli_written_file;

/* sl_safetensors_save that also says what was written. `source` NULL: the items have data. */
sl_status sli_safetensors_write(const char *path, const sl_safetensors_item *items, size_t count,
                                const sl_metadata *metadata, size_t metadata_count,
                                const sli_item_source *source, sli_written_file *written);

/* Fails as sl_safetensors_save would for a path that cannot be written or a disk without room, and
 * leaves nothing behind. The items need no data. */
sl_status sli_safetensors_try_write(const char *path, const sl_safetensors_item *items,
                                    size_t count);

#endif
