/* Merging: of all neighbours in a piece that make a token, the pair with the lowest rank merges,
 * the leftmost of equals, until none is left. The places of pairs wait in a heap, so that a piece
 * of n bytes takes n log n steps. A place whose pair is another one by now is passed over. */
#include "text/bpe.h"

#include "core/error.h"
#include "core/memory.h"
#include "text/piece_cache.h"
#include "text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>
#define XXH_INLINE_ALL /* as in token_table.c */
#include <xxhash.h>

enum { FIRST_MERGES = 1 << 12, NONE = -1 };
enum { LEAST_TO_CACHE = 1 << 14 }; /* bytes of texts whose pieces come again often enough */

/* ---- Making ------------------------------------------------------------------------------- */

static sl_status make_merges(size_t count, sli_merge **out)
{
    *out = malloc(count * sizeof **out);
    if (!*out)
        return sli_no_memory(NULL, "%zu merges", count);
    for (size_t i = 0; i < count; i++)
        (*out)[i].rank = SLI_NO_MERGE;
    return SL_OK;
}

sl_status sli_bpe_create(const sli_splitter *split, sli_bpe **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sli_no_memory(NULL, "a tokenizer");
    (*out)->split = split;
    (*out)->mask = FIRST_MERGES - 1;
    (*out)->unknown = NONE;
    for (int byte = 0; byte < 256; byte++)
        (*out)->bytes[byte] = (char)byte;
    sl_status status;
    SL_TRY_OR_FAIL(sli_token_table_init(&(*out)->tokens));
    SL_TRY_OR_FAIL(make_merges(FIRST_MERGES, &(*out)->merges));
    (*out)->tokens.any_bytes = true;
    return SL_OK;
fail:
    sli_bpe_destroy(out);
    return status;
}

void sli_bpe_destroy(sli_bpe **bpe)
{
    if (!bpe || !*bpe)
        return;
    sli_token_table_free(&(*bpe)->tokens);
    sli_added_tokens_free(&(*bpe)->added);
    free((*bpe)->merges);
    free((*bpe)->whole);
    free((*bpe)->behind);
    free((*bpe)->around);
    free(*bpe);
    *bpe = NULL;
}

sl_status sli_bpe_add_token(sli_bpe *bpe, int32_t id, const char *text, size_t bytes)
{
    int32_t got;
    if (bytes == 0 || bytes > SLI_BPE_MOST_TOKEN_BYTES)
        return sl_error(SL_ERR_FORMAT, "token %d must have 1 to %d bytes, got %zu", id,
                        SLI_BPE_MOST_TOKEN_BYTES, bytes);
    SL_TRY(sli_token_table_add(&bpe->tokens, text, bytes, &got));
    if (got != id)
        return sl_error(SL_ERR_FORMAT, "tokens %d and %d have the same bytes", got, id);
    return SL_OK;
}

enum { BYTE_NAME = 6 };

static void name_byte(char name[BYTE_NAME + 1], int byte)
{
    snprintf(name, BYTE_NAME + 1, "<0x%02X>", (unsigned)byte & 0xFF);
}

sl_status sli_bpe_find_bytes(sli_bpe *bpe, bool may_miss)
{
    for (int byte = 0; byte < 256; byte++) {
        char name[BYTE_NAME + 1];
        name_byte(name, byte);
        bpe->of_byte[byte] = bpe->of_characters
                                 ? sli_token_table_find(&bpe->tokens, name, BYTE_NAME)
                                 : sli_token_table_find(&bpe->tokens, &bpe->bytes[byte], 1);
        if (bpe->of_byte[byte] < 0 && (bpe->of_characters || !may_miss))
            return sl_error(SL_ERR_FORMAT,
                            "every byte must be a token, but none of the %d is the byte 0x%02X",
                            bpe->tokens.count, (unsigned)byte);
    }
    return SL_OK;
}

/* The pair's slot, or the free one where it belongs. Keyed by the table's random seed. */
static sli_merge *slot_of(const sli_bpe *bpe, int32_t left, int32_t right)
{
    int32_t pair[2] = {left, right};
    for (size_t i = XXH3_64bits_withSeed(pair, sizeof pair, bpe->tokens.seed);; i++) {
        sli_merge *slot = &bpe->merges[i & bpe->mask];
        if (slot->rank == SLI_NO_MERGE || (slot->left == left && slot->right == right))
            return slot;
    }
}

static sl_status grow_merges(sli_bpe *bpe)
{
    sli_merge *old = bpe->merges, *doubled;
    size_t count = bpe->mask + 1;
    SL_TRY(make_merges(2 * count, &doubled));
    bpe->merges = doubled;
    bpe->mask = 2 * count - 1;
    for (size_t i = 0; i < count; i++)
        if (old[i].rank != SLI_NO_MERGE)
            *slot_of(bpe, old[i].left, old[i].right) = old[i];
    free(old);
    return SL_OK;
}

sl_status sli_bpe_add_merge(sli_bpe *bpe, const sli_merge *merge, bool *is_new)
{
    sli_merge *slot = slot_of(bpe, merge->left, merge->right);
    *is_new = slot->rank == SLI_NO_MERGE;
    if (!*is_new)
        return SL_OK;
    *slot = *merge;
    bpe->merge_count++;
    return bpe->merge_count > bpe->mask / 2 ? grow_merges(bpe) : SL_OK;
}

bool sli_bpe_read_written(const sli_bpe *bpe, char *text, size_t *bytes)
{
    if (!bpe->of_characters)
        return sli_bytes_of_characters(text, bytes);
    *bytes = sli_read_spaces(text, *bytes);
    return true;
}

/* Whether a token is written so: as what it is read from, or as itself. */
static bool is_written_as(const sli_bpe *bpe, int32_t id, const sl_token *written)
{
    char bytes_of[2 * SLI_BPE_MOST_TOKEN_BYTES];
    sl_token token = sli_token_table_get(&bpe->tokens, id);
    size_t bytes = written->bytes;
    if (bytes > sizeof bytes_of)
        return false;
    memcpy(bytes_of, written->text, bytes);
    (void)sli_bpe_read_written(bpe, bytes_of, &bytes); /* else they stay */
    return token.bytes == bytes && memcmp(token.text, bytes_of, bytes) == 0;
}

sl_status sli_bpe_place_added(sli_bpe *bpe)
{
    const sli_added_tokens *added = &bpe->added;
    bpe->behind = calloc(added->count + 1, sizeof(void *));
    if (!bpe->behind)
        return sli_no_memory(NULL, "%zu added tokens", added->count);
    for (size_t i = 0; i < added->count; i++) {
        int64_t place = (int64_t)added->all[i].id - bpe->tokens.count;
        const sl_token *content = &added->all[i].content;
        if (place < 0 && is_written_as(bpe, added->all[i].id, content))
            continue;
        if (place < 0 || place >= (int64_t)added->count || bpe->behind[place])
            return sl_error(
                SL_ERR_FORMAT,
                "the ids of added tokens must follow those of the %d others, each once, "
                "but \"%.40s\" has %d",
                bpe->tokens.count, content->text, added->all[i].id);
        bpe->behind[place] = &added->all[i];
        bpe->behind_count++;
    }
    for (int32_t i = 0; i < bpe->behind_count; i++)
        if (!bpe->behind[i])
            return sl_error(SL_ERR_FORMAT,
                            "the ids of added tokens must follow those of the %d others, but there "
                            "is none of %d",
                            bpe->tokens.count, bpe->tokens.count + i);
    return SL_OK;
}

/* ---- Merging ------------------------------------------------------------------------------ */

/* What stands at a place of the piece. A token takes a place for each of those that it was made
 * of: its first has its id and merge, its first and last have its length, so that both neighbours
 * are found. A piece may be long, and its places are most of what it takes: they have no more. */
typedef struct part {
    int32_t id;
    int32_t length; /* in places */
    uint32_t merge; /* with the token behind it: its slot of the tokenizer's; NO_SLOT: there is
                       none, or the token before it has taken it */
} part;

#define NO_SLOT UINT32_MAX

struct sli_bpe_encoder {
    const sli_bpe *bpe;
    part *nodes; /* [nodes_count] */
    int32_t nodes_count;
    uint64_t *heap; /* rank · 2³² + place, the smallest first */
    size_t nodes_room, heap_room, heap_count;
    sli_cached_piece *cache; /* [2 ^ SLI_CACHE_BITS]; NULL: there is none */
    uint64_t text_bytes;     /* of all texts so far */
    /* Of a text: */
    bool special;   /* special tokens are looked for, and stand around it */
    bool continues; /* another one, so that no space comes before it */
    const uint8_t *text;
    int32_t *ids; /* the result */
    size_t ids_room, count;
};

static sl_status push(sli_bpe_encoder *work, uint64_t entry)
{
    SL_TRY(sli_array_reserve(&work->heap, &work->heap_room, work->heap_count + 1,
                             sizeof *work->heap, SIZE_MAX / 16, "pairs of tokens"));
    size_t i = work->heap_count++;
    for (; i > 0 && work->heap[(i - 1) / 2] > entry; i = (i - 1) / 2)
        work->heap[i] = work->heap[(i - 1) / 2];
    work->heap[i] = entry;
    return SL_OK;
}

static uint64_t pop(sli_bpe_encoder *work)
{
    uint64_t *heap = work->heap, first = heap[0], moved = heap[--work->heap_count];
    size_t i = 0, count = work->heap_count;
    for (size_t child; (child = 2 * i + 1) < count; i = child) {
        child += child + 1 < count && heap[child + 1] < heap[child];
        if (heap[child] >= moved)
            break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
    return first;
}

/* Looks at the pair that begins at a place. */
static sl_status look(sli_bpe_encoder *work, int32_t place)
{
    part *node = &work->nodes[place];
    node->merge = NO_SLOT;
    if (place + node->length == work->nodes_count)
        return SL_OK;
    const sli_merge *merge = slot_of(work->bpe, node->id, node[node->length].id);
    if (merge->rank == SLI_NO_MERGE)
        return SL_OK;
    node->merge = (uint32_t)(merge - work->bpe->merges);
    return push(work, ((uint64_t)merge->rank << 32) | (uint32_t)place);
}

static sl_status merge_at(sli_bpe_encoder *work, int32_t place)
{
    part *left = &work->nodes[place], *right = left + left->length;
    left->id = work->bpe->merges[left->merge].made;
    left->length += right->length;
    left[left->length - 1].length = left->length;
    right->merge = NO_SLOT;
    SL_TRY(look(work, place));
    return place > 0 ? look(work, place - left[-1].length) : SL_OK;
}

static sl_status add_id(sli_bpe_encoder *work, int32_t id)
{
    if (work->count == work->ids_room) /* a call for each id would be slower */
        SL_TRY(sli_array_reserve(&work->ids, &work->ids_room, work->count + 1, sizeof *work->ids,
                                 SIZE_MAX / 16, "ids of tokens"));
    work->ids[work->count++] = id;
    return SL_OK;
}

static void add_part(sli_bpe_encoder *work, int32_t id)
{
    if (id >= 0)
        work->nodes[work->nodes_count++] = (part){.id = id, .length = 1};
}

/* What a piece is before anything merges. */
static void place_parts(sli_bpe_encoder *work, const uint8_t *piece, size_t bytes)
{
    const sli_bpe *bpe = work->bpe;
    work->nodes_count = 0;
    for (size_t i = 0, length = 1; i < bytes; i += length) {
        int32_t id = NONE;
        ucs4_t code;
        if (bpe->of_characters) {
            length = (size_t)u8_mbtouc_unsafe(&code, piece + i, bytes - i);
            id = sli_token_table_find(&bpe->tokens, (const char *)piece + i, length);
            add_part(work, id);
        }
        for (size_t byte = 0; id == NONE && byte < length; byte++)
            add_part(work, bpe->of_byte[piece[i + byte]]);
    }
}

static bool is_current(const sli_bpe_encoder *work, uint64_t entry)
{
    uint32_t merge = work->nodes[(uint32_t)entry].merge;
    return merge != NO_SLOT && work->bpe->merges[merge].rank == entry >> 32;
}

static sl_status merge_piece(sli_bpe_encoder *work, const uint8_t *piece, size_t bytes)
{
    if (bytes > INT32_MAX)
        return sl_error(SL_ERR_UNSUPPORTED, "a word must have at most %d bytes, got %zu", INT32_MAX,
                        bytes);
    SL_TRY(sli_array_reserve(&work->nodes, &work->nodes_room, bytes, sizeof *work->nodes, INT32_MAX,
                             "bytes of a word"));
    place_parts(work, piece, bytes);
    for (int32_t i = 0; i < work->nodes_count; i++)
        SL_TRY(look(work, i));
    while (work->heap_count > 0) {
        uint64_t entry = pop(work);
        if (is_current(work, entry))
            SL_TRY(merge_at(work, (int32_t)(uint32_t)entry));
    }
    for (int32_t i = 0; i < work->nodes_count; i += work->nodes[i].length)
        SL_TRY(add_id(work, work->nodes[i].id));
    return SL_OK;
}

/* A piece that is a token is merged but once, to see whether that makes it. */
static sl_status encode_new_piece(sli_bpe_encoder *work, const uint8_t *piece, size_t bytes)
{
    const sli_bpe *bpe = work->bpe;
    size_t before = work->count;
    int32_t id = bytes <= SLI_BPE_MOST_TOKEN_BYTES
                     ? sli_token_table_find(&bpe->tokens, (const char *)piece, bytes)
                     : NONE;
    if (id != NONE && atomic_load_explicit(&bpe->whole[id], memory_order_relaxed))
        return add_id(work, id);
    SL_TRY(merge_piece(work, piece, bytes));
    if (id != NONE && work->count == before + 1 && work->ids[before] == id)
        atomic_store_explicit(&bpe->whole[id], true, memory_order_relaxed);
    return SL_OK;
}

static sl_status encode_piece(sli_bpe_encoder *work, const uint8_t *piece, size_t bytes)
{
    uint64_t key[2];
    if (!work->cache || bytes > SLI_CACHED_BYTES)
        return encode_new_piece(work, piece, bytes);
    sli_cached_piece *place = sli_cached_place(work->cache, piece, bytes, key);
    if (sli_cached_is(place, key)) {
        for (uint32_t i = 0; i < place->count; i++)
            SL_TRY(add_id(work, place->ids[i]));
        return SL_OK;
    }
    size_t before = work->count;
    SL_TRY(encode_new_piece(work, piece, bytes));
    size_t count = work->count - before;
    if (count > SLI_CACHED_IDS)
        return SL_OK;
    *place = (sli_cached_piece){.key = {key[0], key[1]}, .count = (uint32_t)count};
    for (size_t i = 0; i < count; i++)
        place->ids[i] = work->ids[before + i];
    return SL_OK;
}

sl_status sli_bpe_finish(sli_bpe *bpe, bool all_whole)
{
    bpe->all_whole = all_whole;
    bpe->whole = calloc((size_t)bpe->tokens.count + 1, sizeof *bpe->whole);
    if (!bpe->whole)
        return sli_no_memory(NULL, "%d tokens", bpe->tokens.count);
    if (!bpe->split)
        sli_bpe_split_where_none_reaches(bpe);
    for (int32_t id = 0; all_whole && id < bpe->tokens.count; id++)
        atomic_init(&bpe->whole[id], true);
    return SL_OK;
}

/* ---- Texts -------------------------------------------------------------------------------- */

static int64_t count_lines(const char *text, size_t bytes)
{
    int64_t count = 0;
    const char *at = text, *end = text + bytes;
    for (const char *line_end; at < end && (line_end = memchr(at, '\n', (size_t)(end - at)));
         at = line_end + 1)
        count++;
    return count + (at < end);
}

static sl_status encode_pieces(sli_bpe_encoder *work, const uint8_t *at, const uint8_t *end)
{
    for (const uint8_t *next; at < end; at = next) {
        next = work->bpe->split->next(at, end);
        SL_TRY(encode_piece(work, at, (size_t)(next - at)));
    }
    return SL_OK;
}

/* Whether the text between two added tokens gets a space before it. */
static bool takes_prefix(const sli_bpe_encoder *work, const uint8_t *begin, const uint8_t *end)
{
    if (begin == end || (work->continues && begin == work->text))
        return false;
    switch (work->bpe->prefix) {
    case SLI_PREFIX_NORMALIZED:
        return true;
    case SLI_PREFIX_ALWAYS:
        return !sli_begins_with_space(begin, end);
    case SLI_PREFIX_FIRST:
        return begin == work->text && !sli_begins_with_space(begin, end);
    case SLI_PREFIX_NEVER:
        break;
    }
    return false;
}

/* Encodes what has no added token. */
static sl_status encode_words(sli_bpe_encoder *work, const uint8_t *begin, const uint8_t *end)
{
    uint8_t *copy;
    size_t bytes;
    if (!work->bpe->of_characters || work->bpe->prefix == SLI_PREFIX_NORMALIZED)
        return encode_pieces(work, begin, end);
    SL_TRY(sli_copy_spaces(begin, end, takes_prefix(work, begin, end), &copy, &bytes));
    sl_status status = encode_pieces(work, copy, copy + bytes);
    free(copy);
    return status;
}

static sl_status encode_chunk(sli_bpe_encoder *work, const uint8_t *begin, const uint8_t *end);

/* Encodes what is between added tokens of one kind: first of those of the text as it is, and then,
 * in what is between them, of those of its normalized form. */
static sl_status encode_between(sli_bpe_encoder *work, bool normalized, const uint8_t *begin,
                                const uint8_t *end)
{
    sl_status (*encode)(sli_bpe_encoder *, const uint8_t *, const uint8_t *) =
        normalized ? encode_words : encode_chunk;
    sli_added_match match;
    const uint8_t *start = begin;
    while (sli_added_tokens_next(&work->bpe->added, normalized, work->special, begin, start, end,
                                 &match)) {
        SL_TRY(encode(work, start, match.begin));
        SL_TRY(add_id(work, match.id));
        start = match.end;
    }
    return encode(work, start, end);
}

static sl_status encode_chunk(sli_bpe_encoder *work, const uint8_t *begin, const uint8_t *end)
{
    uint8_t *copy = NULL;
    size_t bytes = (size_t)(end - begin);
    sl_status status;
    if (bytes == 0)
        return SL_OK;
    if (work->bpe->prefix == SLI_PREFIX_NORMALIZED)
        SL_TRY_OR_FAIL(sli_copy_spaces(begin, end, takes_prefix(work, begin, end), &copy, &bytes));
    else if (work->bpe->split->composes)
        SL_TRY_OR_FAIL(sli_text_compose(begin, end, &copy, &bytes));
    begin = copy ? copy : begin;
    status = encode_between(work, true, begin, begin + bytes);
fail:
    free(copy);
    return status;
}

static sl_status encode_text(sli_bpe_encoder *work, const uint8_t *begin, const uint8_t *end)
{
    const sli_bpe *bpe = work->bpe;
    for (size_t i = 0; work->special && i < bpe->before; i++)
        SL_TRY(add_id(work, bpe->around[i]));
    if (begin < end)
        SL_TRY(encode_between(work, false, begin, end));
    for (size_t i = 0; work->special && i < bpe->after; i++)
        SL_TRY(add_id(work, bpe->around[bpe->before + i]));
    return SL_OK;
}

sl_status sli_bpe_encoder_create(const sli_bpe *bpe, sli_bpe_encoder **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sli_no_memory(NULL, "an encoder of texts");
    (*out)->bpe = bpe;
    return SL_OK;
}

void sli_bpe_encoder_destroy(sli_bpe_encoder **encoder)
{
    if (!*encoder)
        return;
    free((*encoder)->nodes);
    free((*encoder)->heap);
    free((*encoder)->cache);
    free(*encoder);
    *encoder = NULL;
}

sl_status sli_bpe_encoder_run(sli_bpe_encoder *encoder, const char *text, size_t bytes,
                              bool special, bool continues, sl_tokens *out)
{
    const uint8_t *begin = (const uint8_t *)text;
    uint8_t *copy = NULL;
    sl_status status;
    *out = (sl_tokens){.line_count = count_lines(text, bytes)};
    encoder->special = special;
    encoder->continues = continues;
    encoder->ids = NULL;
    encoder->ids_room = encoder->count = encoder->heap_count = 0;
    encoder->text_bytes += bytes;
    if (!encoder->cache && encoder->text_bytes >= LEAST_TO_CACHE)
        encoder->cache = calloc((size_t)1 << SLI_CACHE_BITS, sizeof *encoder->cache); /* or none */
    if (bytes > 0 && u8_check(begin, bytes)) {
        SL_TRY_OR_FAIL(sli_text_repair(begin, begin + bytes, &copy, &bytes, &out->invalid_bytes));
        begin = copy;
    }
    encoder->text = begin;
    status = encode_text(encoder, begin, begin + bytes);
fail:
    free(copy);
    out->ids = encoder->ids;
    out->count = (int64_t)encoder->count;
    if (status != SL_OK)
        sl_tokens_free(out);
    return status;
}

sl_status sli_bpe_encode(const sli_bpe *bpe, const char *text, size_t bytes, bool special,
                         bool continues, sl_tokens *out)
{
    sli_bpe_encoder *encoder;
    *out = (sl_tokens){0};
    SL_TRY(sli_bpe_encoder_create(bpe, &encoder));
    sl_status status = sli_bpe_encoder_run(encoder, text, bytes, special, continues, out);
    sli_bpe_encoder_destroy(&encoder);
    return status;
}

/* ---- Merges ------------------------------------------------------------------------------- */

static int by_rank(const void *left, const void *right)
{
    const sli_merge *a = left, *b = right;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if (a->left != b->left)
        return a->left < b->left ? -1 : 1;
    return (a->right > b->right) - (a->right < b->right);
}

sli_merge *sli_bpe_sorted_merges(const sli_bpe *bpe)
{
    size_t count = 0;
    sli_merge *sorted = malloc((bpe->merge_count + 1) * sizeof *sorted);
    for (size_t i = 0; sorted && i <= bpe->mask; i++)
        if (bpe->merges[i].rank != SLI_NO_MERGE)
            sorted[count++] = bpe->merges[i];
    if (count > 0)
        qsort(sorted, count, sizeof *sorted, by_rank);
    return sorted;
}

/* ---- Tokens ------------------------------------------------------------------------------- */

int32_t sli_bpe_size(const sli_bpe *bpe)
{
    return bpe->tokens.count + bpe->behind_count;
}

sl_token sli_bpe_token(const sli_bpe *bpe, int32_t id)
{
    if (id < 0 || id >= sli_bpe_size(bpe))
        return (sl_token){NULL, 0};
    if (id >= bpe->tokens.count)
        return bpe->behind[id - bpe->tokens.count]->content;
    sl_token token = sli_token_table_get(&bpe->tokens, id);
    if (bpe->of_characters && token.bytes == BYTE_NAME && memcmp(token.text, "<0x", 3) == 0) {
        unsigned long byte = strtoul(token.text + 3, NULL, 16) & 0xFF;
        if (bpe->of_byte[byte] == id)
            return (sl_token){&bpe->bytes[byte], 1};
    }
    return token;
}

int32_t sli_bpe_id(const sli_bpe *bpe, const char *text, size_t bytes)
{
    const sli_added_token *added = sli_added_tokens_find(&bpe->added, text, bytes);
    return added ? added->id : sli_token_table_find(&bpe->tokens, text, bytes);
}
