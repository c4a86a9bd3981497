#include "core/checksum.h"
#include "core/error.h"

#include <stdio.h>
#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t in full */
#include <xxhash.h>

/* The library's own type, under our name: it must be allocated by XXH3_createState. */
struct sli_checksum {
    XXH3_state_t state;
};

sl_status sli_checksum_create(sli_checksum **out)
{
    *out = (sli_checksum *)XXH3_createState();
    if (!*out)
        return sli_no_memory(NULL, "a checksum");
    XXH3_128bits_reset(&(*out)->state);
    return SL_OK;
}

void sli_checksum_destroy(sli_checksum **sum)
{
    if (!sum || !*sum)
        return;
    XXH3_freeState(&(*sum)->state);
    *sum = NULL;
}

void sli_checksum_add(sli_checksum *sum, const void *data, uint64_t bytes)
{
    if (bytes > 0)
        XXH3_128bits_update(&sum->state, data, bytes);
}

static const char *print_hash(XXH128_hash_t hash, char *text)
{
    snprintf(text, SLI_CHECKSUM_BYTES, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
    return text;
}

const char *sli_checksum_text(const sli_checksum *sum, char *text)
{
    return print_hash(XXH3_128bits_digest(&sum->state), text);
}

const char *sli_checksum_of(const void *data, uint64_t bytes, char *text)
{
    return print_hash(XXH3_128bits(data, bytes), text);
}
