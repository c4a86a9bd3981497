/* Where everything goes in a safetensors file that is to be written. */
#ifndef SLI_IO_SAFETENSORS_LAYOUT_H
#define SLI_IO_SAFETENSORS_LAYOUT_H

#include "sluice/safetensors.h"

typedef struct sli_safetensors_place {
    const char *name;
    uint64_t begin; /* of its bytes in the file */
    uint64_t bytes;
} sli_safetensors_place;

typedef struct sli_safetensors_layout {
    char *head; /* the file's first `head_bytes`: the header's length, and the header */
    size_t head_bytes;
    uint64_t file_bytes;
    sli_safetensors_place *places; /* [count], one for each item */
    size_t count;
    struct json_t *json; /* owns the names */
} sli_safetensors_layout;

/* Lays a file out; arguments and errors as for sl_safetensors_writer_create. */
sl_status sli_safetensors_layout_create(const sl_safetensors_item *items, size_t count,
                                        const sl_metadata *metadata, size_t metadata_count,
                                        sli_safetensors_layout **out);

/* Frees it; NULL is allowed. */
void sli_safetensors_layout_destroy(sli_safetensors_layout **layout);

#endif
