/* The ids of short pieces that came before: few words are most of a text, and looking them up among
 * a hundred thousand tokens would miss the processor's caches several times each. A place of the
 * cache has the last piece that belongs there. */
#ifndef SLI_TEXT_PIECE_CACHE_H
#define SLI_TEXT_PIECE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SLI_CACHED_BYTES = 15, SLI_CACHED_IDS = 3, SLI_CACHE_BITS = 14 };

typedef struct sli_cached_piece {
    uint64_t key[2]; /* the piece's bytes, zeros, and in the last byte their number; 0: free */
    uint32_t count;
    int32_t ids[SLI_CACHED_IDS];
} sli_cached_piece;

/* Where a piece of 1 to SLI_CACHED_BYTES bytes belongs, and its key. */
static inline sli_cached_piece *sli_cached_place(sli_cached_piece *cache, const uint8_t *piece,
                                                 size_t bytes, uint64_t key[2])
{
    uint8_t text[SLI_CACHED_BYTES + 1] = {0};
    memcpy(text, piece, bytes);
    text[SLI_CACHED_BYTES] = (uint8_t)bytes;
    memcpy(key, text, sizeof text);
    uint64_t mixed =
        (key[0] ^ key[1] * UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xD6E8FEB86659FD93);
    return &cache[mixed >> (64 - SLI_CACHE_BITS)];
}

static inline bool sli_cached_is(const sli_cached_piece *place, const uint64_t key[2])
{
    return place->key[0] == key[0] && place->key[1] == key[1];
}

#endif
