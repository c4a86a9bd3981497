/* The JSON header of a safetensors file, read: a checked table of tensors. */
#ifndef SLI_IO_SAFETENSORS_HEADER_H
#define SLI_IO_SAFETENSORS_HEADER_H

#include "sluice/safetensors.h"

/* The reference implementation's limit on the header's length. */
#define SLI_SAFETENSORS_HEADER_LIMIT UINT64_C(100000000)

typedef struct sli_safetensors_entry {
    sl_safetensors_info info;
    uint64_t begin; /* of its bytes, counted from the header's end */
} sli_safetensors_entry;

typedef struct sli_safetensors_header {
    char *strings; /* all names and the metadata's */
    size_t count;
    sli_safetensors_entry *entries;  /* [count], in the order of their bytes */
    sli_safetensors_entry **by_name; /* [count], sorted */
    int64_t *sizes;                  /* what every info.size points into */
    sl_metadata *metadata;           /* [metadata_count], the metadata */
    size_t metadata_count;
} sli_safetensors_header;

/* Reads and checks the `length` bytes of a header at `text`, for a file with `data_bytes` behind
 * it. Borrows `text`. Errors: SL_ERR_FORMAT, SL_ERR_MEMORY. */
sl_status sli_safetensors_header_parse(const char *text, size_t length, uint64_t data_bytes,
                                       sli_safetensors_header **out);

/* Frees it; NULL is allowed. */
void sli_safetensors_header_destroy(sli_safetensors_header **header);

/* The tensor of that name, or NULL; the metadata's value of that key, or NULL. */
const sli_safetensors_entry *sli_safetensors_header_find(const sli_safetensors_header *header,
                                                         const char *name);
const char *sli_safetensors_header_metadata(const sli_safetensors_header *header, const char *key);

#endif
