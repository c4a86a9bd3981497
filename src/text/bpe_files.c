/* The files of a byte-level BPE.
 *
 *   vocab.json, merges.txt   tokens with their ids, and the pairs that merge, in the order of their
 *                            ranks. Both write bytes as characters: those that print as themselves,
 *                            the 68 others as U+0100 and following.
 *   a rank file              lines "BASE64 RANK": a token and its id. It has no merges: two
 *                            neighbours merge if they make a token, whose id is the rank. */
#include "text/bpe.h"

#include "core/error.h"
#include "core/memory.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_BYTES = 40, MOST_ID_DIGITS = 9 };

/* ---- Tokens in the order of their ids ----------------------------------------------------- */

/* Tokens as they come, and then by id. */
typedef struct token_entry {
    size_t start, bytes; /* in list.bytes */
    int32_t id;
} token_entry;

typedef struct token_list {
    token_entry *entries;
    char *bytes;
    size_t room, count, used;
} token_list;

/* Of a file of so many bytes, whose tokens are no longer than the text they are written as. */
static sl_status list_create(size_t bytes, token_list *out)
{
    *out = (token_list){.bytes = malloc(bytes + 1)};
    return out->bytes ? SL_OK : sli_no_memory(NULL, "%zu bytes of tokens", bytes);
}

static void list_free(token_list *list)
{
    free(list->entries);
    free(list->bytes);
}

/* The token's bytes stand already behind those of the others. */
static sl_status list_add(token_list *list, size_t bytes, int32_t id)
{
    SL_TRY(sli_array_reserve(&list->entries, &list->room, list->count + 1, sizeof *list->entries,
                             INT32_MAX - 1, "tokens"));
    list->entries[list->count++] = (token_entry){list->used, bytes, id};
    list->used += bytes;
    return SL_OK;
}

static int by_id(const void *left, const void *right)
{
    const token_entry *a = left, *b = right;
    return (a->id > b->id) - (a->id < b->id);
}

/* As most files have them. */
static bool is_in_order(const token_list *list)
{
    for (size_t i = 1; i < list->count; i++)
        if (list->entries[i].id < list->entries[i - 1].id)
            return false;
    return true;
}

/* Gives the tokenizer the tokens, whose ids must be 0, 1, 2 and so on. */
static sl_status list_use(token_list *list, sli_bpe *bpe)
{
    if (!is_in_order(list))
        qsort(list->entries, list->count, sizeof *list->entries, by_id);
    for (size_t i = 0; i < list->count; i++) {
        const token_entry *entry = &list->entries[i];
        if (entry->id != (int32_t)i)
            return sl_error(SL_ERR_FORMAT,
                            "the ids of %zu tokens must be 0 to %zu, each once, but %s %zu",
                            list->count, list->count - 1,
                            entry->id < (int32_t)i ? "there are two of" : "there is none of",
                            entry->id < (int32_t)i ? (size_t)entry->id : i);
        SL_TRY(sli_bpe_add_token(bpe, entry->id, list->bytes + entry->start, entry->bytes));
    }
    return SL_OK;
}

/* ---- Lines -------------------------------------------------------------------------------- */

typedef struct text_line {
    const char *text;
    size_t bytes, number; /* from 1 */
} text_line;

/* The next line, without its end; false after the last. `*line` begins as zeros. */
static bool next_line(const sli_named_text *named, text_line *line)
{
    const char *end = named->text + named->bytes;
    const char *at = line->text ? line->text + line->bytes + 1 : named->text;
    if (at >= end)
        return false;
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    line->text = at;
    line->bytes = (size_t)((stop ? stop : end) - at);
    line->number++;
    return true;
}

static sl_status refuse_line(const text_line *line, const char *expected)
{
    bool cut = line->bytes > SHOWN_BYTES;
    return sl_error(SL_ERR_FORMAT, "line %zu must be %s, got \"%.*s\"%s", line->number, expected,
                    (int)(cut ? SHOWN_BYTES : line->bytes), line->text, cut ? "…" : "");
}

/* A whole number of a few digits. */
static bool read_id(const char *text, size_t digits, int32_t *id)
{
    *id = 0;
    for (size_t i = 0; i < digits && i < MOST_ID_DIGITS; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        *id = 10 * *id + (text[i] - '0');
    }
    return digits >= 1 && digits <= MOST_ID_DIGITS && (digits == 1 || text[0] != '0');
}

/* ---- vocab.json --------------------------------------------------------------------------- */

static sl_status read_entry(const sli_json *json, const sli_json_walk *walk, const sli_bpe *bpe,
                            token_list *list)
{
    char *room = list->bytes + list->used;
    const char *text;
    int32_t id;
    SL_TRY(sli_json_decode(json, walk->key, &room, &text));
    size_t bytes = (size_t)(room - 1 - text), shown = bytes < SHOWN_BYTES ? bytes : SHOWN_BYTES;
    if (!read_id(walk->value.begin, (size_t)(walk->value.end - walk->value.begin), &id))
        return sl_error(SL_ERR_FORMAT, "the id of \"%.*s\" must be a whole number, got %.*s",
                        (int)shown, text,
                        (int)(walk->value.end - walk->value.begin > SHOWN_BYTES
                                  ? SHOWN_BYTES
                                  : walk->value.end - walk->value.begin),
                        walk->value.begin);
    if (!sli_bpe_read_written(bpe, list->bytes + list->used, &bytes) &&
        !sli_added_tokens_find(&bpe->added, text, bytes))
        return sl_error(SL_ERR_FORMAT,
                        "token %d must be written in the 256 characters that stand for bytes, got "
                        "\"%.*s\"",
                        id, (int)shown, text);
    return list_add(list, bytes, id);
}

static sl_status list_entries(const sli_json *json, sli_json_value object, const sli_bpe *bpe,
                              token_list *list)
{
    sli_json_walk walk;
    SL_TRY(sli_json_walk_begin(json, object, &walk));
    while (sli_json_walk_next(&walk))
        SL_TRY(read_entry(json, &walk, bpe, list));
    return walk.status;
}

sl_status sli_bpe_read_tokens(const sli_json *json, sli_json_value object, sli_bpe *bpe)
{
    token_list list;
    if (!sli_json_is(object, '{'))
        return sl_error(SL_ERR_FORMAT, "the vocabulary must be a JSON object of tokens and ids");
    SL_TRY(list_create((size_t)(object.end - object.begin), &list));
    sl_status status;
    SL_TRY_OR_FAIL(list_entries(json, object, bpe, &list));
    status = list_use(&list, bpe);
fail:
    list_free(&list);
    return status;
}

static sl_status parse_vocab(const sli_named_text *vocab, sli_bpe *bpe)
{
    const sli_json json = {"the vocabulary", vocab->text, vocab->bytes};
    sli_json_value root;
    SL_TRY(sli_json_root(&json, &root));
    SL_TRY(sli_bpe_read_tokens(&json, root, bpe));
    return sli_bpe_find_bytes(bpe, false);
}

/* ---- merges.txt --------------------------------------------------------------------------- */

/* The id of a half of a pair, whose bytes are then in `to`; -1: there is no such token. */
static int32_t find_half(const sli_bpe *bpe, sl_token half, char *to, size_t *bytes)
{
    *bytes = half.bytes;
    if (half.bytes > 2 * SLI_BPE_MOST_TOKEN_BYTES) /* of a byte, or a space: 2 or 3 bytes */
        return -1;
    memcpy(to, half.text, half.bytes);
    return sli_bpe_read_written(bpe, to, bytes) ? sli_token_table_find(&bpe->tokens, to, *bytes)
                                                : -1;
}

sl_status sli_bpe_read_merge(sli_bpe *bpe, uint32_t rank, sl_token left, sl_token right,
                             const char **expected)
{
    char both[4 * SLI_BPE_MOST_TOKEN_BYTES];
    size_t bytes, more = 0;
    bool is_new;
    sli_merge merge = {.rank = rank, .right = -1, .made = -1};
    *expected = "two tokens of the vocabulary that make a third";
    merge.left = find_half(bpe, left, both, &bytes);
    if (merge.left >= 0)
        merge.right = find_half(bpe, right, both + bytes, &more);
    if (merge.right >= 0)
        merge.made = sli_token_table_find(&bpe->tokens, both, bytes + more);
    if (merge.made < 0)
        return SL_OK;
    SL_TRY(sli_bpe_add_merge(bpe, &merge, &is_new));
    *expected = is_new ? NULL : "a pair that is not there before";
    return SL_OK;
}

static sl_status read_merge(const text_line *line, uint32_t rank, sli_bpe *bpe)
{
    const char *blank = memchr(line->text, ' ', line->bytes), *expected;
    size_t left = blank ? (size_t)(blank - line->text) : 0;
    if (left == 0 || left + 1 == line->bytes)
        return refuse_line(line, "two tokens with a space between them");
    SL_TRY(sli_bpe_read_merge(bpe, rank, (sl_token){line->text, left},
                              (sl_token){blank + 1, line->bytes - left - 1}, &expected));
    return expected ? refuse_line(line, expected) : SL_OK;
}

static sl_status parse_merges(const sli_named_text *merges, sli_bpe *bpe)
{
    static const char version[] = "#version";
    text_line line = {0};
    uint32_t rank = 0;
    sl_status status = SL_OK;
    while (status == SL_OK && next_line(merges, &line)) {
        bool is_head = line.number == 1 && line.bytes >= sizeof version - 1 &&
                       memcmp(line.text, version, sizeof version - 1) == 0;
        if (!is_head)
            status = read_merge(&line, rank++, bpe);
    }
    return sl_error_context(status, "%s: ", merges->name);
}

sl_status sli_bpe_parse_vocab(const sli_named_text *vocab, const sli_named_text *merges,
                              const sli_splitter *split, sli_bpe **out)
{
    SL_TRY(sli_bpe_create(split, out));
    sl_status status;
    SL_TRY_OR_FAIL(sl_error_context(parse_vocab(vocab, *out), "%s: ", vocab->name));
    SL_TRY_OR_FAIL(parse_merges(merges, *out));
    SL_TRY_OR_FAIL(sli_bpe_finish(*out, false));
    return SL_OK;
fail:
    sli_bpe_destroy(out);
    return status;
}

/* ---- Rank files --------------------------------------------------------------------------- */

static sl_status read_rank(const text_line *line, token_list *list)
{
    const char *blank = memchr(line->text, ' ', line->bytes);
    size_t written = blank ? (size_t)(blank - line->text) : 0, bytes;
    unsigned char *to = (unsigned char *)list->bytes + list->used;
    int32_t id;
    if (written == 0 || !read_id(blank + 1, line->bytes - written - 1, &id) ||
        sodium_base642bin(to, written, line->text, written, NULL, &bytes, NULL,
                          sodium_base64_VARIANT_ORIGINAL) != 0)
        return refuse_line(line, "a token in base64, a space and its rank");
    return list_add(list, bytes, id);
}

/* Every way in which a token is made of two. */
static sl_status add_splits(sli_bpe *bpe, int32_t id)
{
    sl_token token = sli_token_table_get(&bpe->tokens, id);
    bool is_new; /* always: a pair makes one token */
    for (size_t left = 1; left < token.bytes; left++) {
        sli_merge merge = {.made = id, .rank = (uint32_t)id};
        merge.left = sli_token_table_find(&bpe->tokens, token.text, left);
        merge.right = sli_token_table_find(&bpe->tokens, token.text + left, token.bytes - left);
        if (merge.left >= 0 && merge.right >= 0)
            SL_TRY(sli_bpe_add_merge(bpe, &merge, &is_new));
    }
    return SL_OK;
}

static sl_status parse_ranks(const sli_named_text *ranks, sli_bpe *bpe)
{
    token_list list;
    text_line line = {0};
    sl_status status;
    SL_TRY(list_create(ranks->bytes, &list));
    while (next_line(ranks, &line))
        SL_TRY_OR_FAIL(read_rank(&line, &list));
    SL_TRY_OR_FAIL(list_use(&list, bpe));
    SL_TRY_OR_FAIL(sli_bpe_find_bytes(bpe, false));
    for (int32_t id = 0; id < bpe->tokens.count; id++)
        SL_TRY_OR_FAIL(add_splits(bpe, id));
fail:
    list_free(&list);
    return status;
}

sl_status sli_bpe_parse_ranks(const sli_named_text *ranks, const sli_splitter *split, sli_bpe **out)
{
    SL_TRY(sli_bpe_create(split, out));
    sl_status status;
    SL_TRY_OR_FAIL(sl_error_context(parse_ranks(ranks, *out), "%s: ", ranks->name));
    SL_TRY_OR_FAIL(sli_bpe_finish(*out, true));
    return SL_OK;
fail:
    sli_bpe_destroy(out);
    return status;
}
