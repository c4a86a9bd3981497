/* Training: the pieces of the texts are divided into bytes, which are tokens. Again and again the
 * pair of neighbours that is most frequent, of equals that of the lowest ids, becomes a token
 * wherever it stands. This is what Hugging Face's BpeTrainer does.
 *
 * Each pair has a list of the places where it stands, so that a merge costs as much as it changes,
 * and a long piece no more than many short ones. The list is made in one step and never grows: both
 * tokens of a pair are there before it, and no token is made twice. (Where two places have the same
 * bytes, and no token crosses the ends of either, the same merges happen in both at the same
 * steps.) So a pair's count can only fall after that. The queue has pairs with the count that they
 * had when they were put there; one that comes first with an old count is put back with that of
 * now. */
#include "text/bpe_train.h"

#include "core/error.h"
#include "core/memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL /* as in token_table.c */
#include <xxhash.h>

#define NO_PLACE UINT32_MAX

enum { NONE = -1, FIRST_SLOTS = 1 << 16 };

/* A byte of a piece, or the token that begins with it. */
typedef struct symbol {
    int32_t id; /* NONE: the token to the left has taken it */
    int32_t piece;
    uint32_t before, after; /* the neighbours' places; NO_PLACE: an end of the piece */
} symbol;

typedef struct pair {
    int32_t left, right;
    int64_t count;
    uint32_t place_count;
    size_t first; /* its places in `places`, in ascending order, some of which it has left */
} pair;

typedef struct entry {
    int64_t count;
    uint32_t pair;
} entry;

typedef struct new_place {
    uint32_t pair, place;
} new_place;

typedef struct learned_merge {
    int32_t left, right, made;
} learned_merge;

typedef struct learning {
    const int64_t *counts; /* of pieces */
    sli_token_table tokens;
    symbol *symbols;
    size_t symbol_count;
    pair *pairs;
    uint32_t *slots; /* [mask + 1] a hash table of pairs, which are in it less 1; 0: free */
    size_t pair_count, pair_room, mask;
    entry *queue; /* a heap */
    size_t queue_count, queue_room;
    uint32_t *places;
    size_t place_count, place_room;
    new_place *new_places;
    size_t new_count, new_room;
    uint32_t *touched; /* pairs with new places */
    size_t touched_count, touched_room;
    learned_merge *merges;
    size_t merge_count, merge_room;
} learning;

/* ---- Pairs -------------------------------------------------------------------------------- */

/* The slot of the pair, or the free one where it belongs. */
static uint32_t *slot_of(const learning *job, int32_t left, int32_t right)
{
    int32_t both[2] = {left, right};
    for (size_t i = XXH3_64bits_withSeed(both, sizeof both, job->tokens.seed);; i++) {
        uint32_t *slot = &job->slots[i & job->mask];
        if (*slot == 0 ||
            (job->pairs[*slot - 1].left == left && job->pairs[*slot - 1].right == right))
            return slot;
    }
}

static sl_status make_slots(learning *job, size_t count)
{
    free(job->slots);
    job->slots = calloc(count, sizeof *job->slots);
    if (!job->slots)
        return sli_no_memory(NULL, "%zu pairs", count);
    job->mask = count - 1;
    for (size_t i = 0; i < job->pair_count; i++)
        *slot_of(job, job->pairs[i].left, job->pairs[i].right) = (uint32_t)(i + 1);
    return SL_OK;
}

/* The pair's number. It is added, with a count of 0, where there is none. */
static sl_status find_pair(learning *job, int32_t left, int32_t right, uint32_t *out)
{
    uint32_t *slot = slot_of(job, left, right);
    if (*slot == 0) {
        SL_TRY(sli_array_reserve(&job->pairs, &job->pair_room, job->pair_count + 1,
                                 sizeof *job->pairs, UINT32_MAX - 1, "pairs"));
        job->pairs[job->pair_count++] = (pair){.left = left, .right = right};
        *slot = (uint32_t)job->pair_count;
        *out = *slot - 1;
        return job->pair_count > job->mask / 2 ? make_slots(job, 2 * (job->mask + 1)) : SL_OK;
    }
    *out = *slot - 1;
    return SL_OK;
}

/* ---- The queue ---------------------------------------------------------------------------- */

static bool comes_before(const learning *job, const entry *a, const entry *b)
{
    if (a->count != b->count)
        return a->count > b->count;
    const pair *left = &job->pairs[a->pair], *right = &job->pairs[b->pair];
    return left->left != right->left ? left->left < right->left : left->right < right->right;
}

static sl_status push(learning *job, entry added)
{
    SL_TRY(sli_array_reserve(&job->queue, &job->queue_room, job->queue_count + 1,
                             sizeof *job->queue, SIZE_MAX / 64, "pairs"));
    size_t i = job->queue_count++;
    for (; i > 0 && comes_before(job, &added, &job->queue[(i - 1) / 2]); i = (i - 1) / 2)
        job->queue[i] = job->queue[(i - 1) / 2];
    job->queue[i] = added;
    return SL_OK;
}

/* Puts an entry where the first one is, which goes. */
static void replace_first(learning *job, entry added)
{
    size_t i = 0, count = job->queue_count;
    for (size_t child; (child = 2 * i + 1) < count; i = child) {
        child += child + 1 < count && comes_before(job, &job->queue[child + 1], &job->queue[child]);
        if (!comes_before(job, &job->queue[child], &added))
            break;
        job->queue[i] = job->queue[child];
    }
    job->queue[i] = added;
}

static entry pop(learning *job)
{
    entry first = job->queue[0];
    if (--job->queue_count > 0)
        replace_first(job, job->queue[job->queue_count]);
    return first;
}

/* ---- New places --------------------------------------------------------------------------- */

/* A pair stands `count` times more at a place. */
static sl_status add_place(learning *job, int32_t left, int32_t right, uint32_t place,
                           int64_t count)
{
    uint32_t number;
    SL_TRY(find_pair(job, left, right, &number));
    pair *found = &job->pairs[number];
    found->count += count;
    if (found->place_count++ == 0) {
        SL_TRY(sli_array_reserve(&job->touched, &job->touched_room, job->touched_count + 1,
                                 sizeof *job->touched, SIZE_MAX / 16, "pairs"));
        job->touched[job->touched_count++] = number;
    }
    SL_TRY(sli_array_reserve(&job->new_places, &job->new_room, job->new_count + 1,
                             sizeof *job->new_places, SIZE_MAX / 16, "places"));
    job->new_places[job->new_count++] = (new_place){number, place};
    return SL_OK;
}

static sl_status remove_count(learning *job, int32_t left, int32_t right, int64_t count)
{
    uint32_t number;
    SL_TRY(find_pair(job, left, right, &number));
    job->pairs[number].count -= count;
    return SL_OK;
}

/* Gives each pair with new places their list, and puts it into the queue. */
static sl_status queue_new_pairs(learning *job)
{
    SL_TRY(sli_array_reserve(&job->places, &job->place_room, job->place_count + job->new_count,
                             sizeof *job->places, SIZE_MAX / 16, "places"));
    for (size_t i = 0; i < job->touched_count; i++) {
        pair *touched = &job->pairs[job->touched[i]];
        touched->first = job->place_count;
        job->place_count += touched->place_count;
        touched->place_count = 0; /* counts again below */
    }
    for (size_t i = 0; i < job->new_count; i++) {
        pair *has = &job->pairs[job->new_places[i].pair];
        job->places[has->first + has->place_count++] = job->new_places[i].place;
    }
    for (size_t i = 0; i < job->touched_count; i++)
        SL_TRY(push(job, (entry){job->pairs[job->touched[i]].count, job->touched[i]}));
    job->new_count = job->touched_count = 0;
    return SL_OK;
}

/* ---- Merging ------------------------------------------------------------------------------ */

static bool may_follow(const learning *job, int32_t left, int32_t right)
{
    size_t bytes = sli_token_table_get(&job->tokens, left).bytes +
                   sli_token_table_get(&job->tokens, right).bytes;
    return bytes <= SLI_BPE_MOST_TOKEN_BYTES;
}

/* Merges at a place where the pair may no longer be. */
static sl_status merge_place(learning *job, const learned_merge *merge, uint32_t place)
{
    symbol *first = &job->symbols[place], *second;
    if (first->id != merge->left || first->after == NO_PLACE ||
        job->symbols[first->after].id != merge->right)
        return SL_OK;
    int64_t count = job->counts[first->piece];
    second = &job->symbols[first->after];
    first->id = merge->made;
    first->after = second->after;
    second->id = NONE;
    if (first->before != NO_PLACE) {
        int32_t before = job->symbols[first->before].id;
        SL_TRY(remove_count(job, before, merge->left, count));
        if (may_follow(job, before, merge->made))
            SL_TRY(add_place(job, before, merge->made, first->before, count));
    }
    if (first->after != NO_PLACE) {
        int32_t after = job->symbols[first->after].id;
        job->symbols[first->after].before = place;
        SL_TRY(remove_count(job, merge->right, after, count));
        if (may_follow(job, merge->made, after))
            SL_TRY(add_place(job, merge->made, after, place, count));
    }
    return SL_OK;
}

/* The token that the pair makes; it may be a special one. */
static sl_status make_token(learning *job, const pair *made_of, int32_t *id)
{
    char both[SLI_BPE_MOST_TOKEN_BYTES];
    sl_token left = sli_token_table_get(&job->tokens, made_of->left),
             right = sli_token_table_get(&job->tokens, made_of->right);
    assert(left.bytes + right.bytes <= sizeof both);
    memcpy(both, left.text, left.bytes);
    memcpy(both + left.bytes, right.text, right.bytes);
    return sli_token_table_add(&job->tokens, both, left.bytes + right.bytes, id);
}

static sl_status merge_pair(learning *job, uint32_t number)
{
    pair merged = job->pairs[number];
    learned_merge merge = {merged.left, merged.right, NONE};
    SL_TRY(make_token(job, &merged, &merge.made));
    SL_TRY(sli_array_reserve(&job->merges, &job->merge_room, job->merge_count + 1,
                             sizeof *job->merges, UINT32_MAX - 1, "merges"));
    job->merges[job->merge_count++] = merge;
    for (size_t i = 0; i < merged.place_count; i++)
        SL_TRY(merge_place(job, &merge, job->places[merged.first + i]));
    return queue_new_pairs(job);
}

static sl_status merge_all(learning *job, int32_t vocab_size)
{
    while (job->tokens.count < vocab_size && job->queue_count > 0) {
        entry first = job->queue[0];
        int64_t count = job->pairs[first.pair].count;
        if (first.count != count) {
            first.count = count;
            replace_first(job, first);
            continue;
        }
        if (count < 1)
            break;
        SL_TRY(merge_pair(job, pop(job).pair));
    }
    return SL_OK;
}

/* ---- Before and after --------------------------------------------------------------------- */

static void list_bytes_in_order(uint8_t bytes[256])
{
    int count = 0;
    for (uint32_t character = 0; count < 256; character++)
        for (int byte = 0; byte < 256; byte++)
            if (sli_character_of_byte((uint8_t)byte) == character)
                bytes[count++] = (uint8_t)byte;
}

static sl_status add_first_tokens(learning *job, const sl_bpe_training *training)
{
    int32_t id;
    uint8_t bytes[256];
    for (int i = 0; i < training->special_count; i++)
        SL_TRY(sli_token_table_add(&job->tokens, training->special[i], strlen(training->special[i]),
                                   &id));
    list_bytes_in_order(bytes);
    for (int i = 0; i < 256; i++)
        SL_TRY(sli_token_table_add(&job->tokens, (const char *)&bytes[i], 1, &id));
    return SL_OK;
}

static void lay_out_piece(learning *job, int32_t piece, sl_token text)
{
    for (size_t i = 0; i < text.bytes; i++) {
        uint32_t place = (uint32_t)job->symbol_count++;
        job->symbols[place] =
            (symbol){sli_token_table_find(&job->tokens, text.text + i, 1), piece,
                     i > 0 ? place - 1 : NO_PLACE, i + 1 < text.bytes ? place + 1 : NO_PLACE};
    }
}

static sl_status lay_out_pieces(learning *job, const sli_pieces *pieces)
{
    size_t bytes = pieces->table.starts[pieces->table.count] - (size_t)pieces->table.count;
    if (bytes >= NO_PLACE)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "the different words of the texts must have less than %u bytes in all, got "
                        "%zu",
                        NO_PLACE, bytes);
    job->symbols = calloc(bytes + 1, sizeof *job->symbols);
    if (!job->symbols)
        return sli_no_memory(NULL, "words of %zu bytes", bytes);
    for (int32_t i = 0; i < pieces->table.count; i++)
        lay_out_piece(job, i, sli_token_table_get(&pieces->table, i));
    for (uint32_t place = 0; place < job->symbol_count; place++) {
        const symbol *s = &job->symbols[place];
        if (s->after != NO_PLACE)
            SL_TRY(add_place(job, s->id, job->symbols[s->after].id, place, job->counts[s->piece]));
    }
    return queue_new_pairs(job);
}

static sl_status learn(learning *job, const sli_pieces *pieces, const sl_bpe_training *training)
{
    SL_TRY(sli_token_table_init(&job->tokens));
    job->tokens.any_bytes = true;
    SL_TRY(add_first_tokens(job, training));
    SL_TRY(make_slots(job, FIRST_SLOTS));
    SL_TRY(lay_out_pieces(job, pieces));
    return merge_all(job, training->vocab_size);
}

static sl_status add_special(sli_bpe *bpe, const sl_bpe_training *training)
{
    for (int32_t i = 0; i < training->special_count; i++) {
        const char *text = training->special[i];
        SL_TRY(
            sli_added_tokens_add(&bpe->added, &(sli_added_token){.id = i,
                                                                 .special = true,
                                                                 .content = {text, strlen(text)}}));
    }
    return sli_added_tokens_finish(&bpe->added, false);
}

static sl_status make_bpe(const learning *job, const sl_bpe_training *training, sli_bpe *bpe)
{
    bool is_new;
    for (int32_t id = 0; id < job->tokens.count; id++) {
        sl_token token = sli_token_table_get(&job->tokens, id);
        SL_TRY(sli_bpe_add_token(bpe, id, token.text, token.bytes));
    }
    SL_TRY(sli_bpe_find_bytes(bpe, false));
    for (size_t i = 0; i < job->merge_count; i++) {
        const learned_merge *merge = &job->merges[i];
        SL_TRY(sli_bpe_add_merge(bpe,
                                 &(sli_merge){merge->left, merge->right, merge->made, (uint32_t)i},
                                 &is_new));
    }
    SL_TRY(add_special(bpe, training));
    SL_TRY(sli_bpe_place_added(bpe));
    return sli_bpe_finish(bpe, false);
}

static void free_job(learning *job)
{
    sli_token_table_free(&job->tokens);
    free(job->symbols);
    free(job->pairs);
    free(job->slots);
    free(job->queue);
    free(job->places);
    free(job->new_places);
    free(job->touched);
    free(job->merges);
}

sl_status sli_bpe_learn(const sli_pieces *pieces, const sl_bpe_training *training,
                        const sli_splitter *split, sli_bpe **out)
{
    learning job = {.counts = pieces->counts};
    *out = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(learn(&job, pieces, training));
    SL_TRY_OR_FAIL(sli_bpe_create(split, out));
    status = make_bpe(&job, training, *out);
fail:
    if (status != SL_OK)
        sli_bpe_destroy(out);
    free_job(&job);
    return status;
}
