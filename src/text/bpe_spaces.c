/* White space in a BPE of SentencePiece's kind. A space belongs to the word behind it, and a text
 * gets one before its first word. Files write it as U+2581, and so does the library tokenizers in
 * the texts that it encodes, where U+2581 and a space are then the same: here both are a space. */
#include "text/bpe.h"

#include "core/error.h"

#include <stdlib.h>
#include <string.h>

static const uint8_t written_space[] = SLI_WRITTEN_SPACE;
enum { WRITTEN_BYTES = sizeof written_space - 1 };

static bool is_written_space(const uint8_t *text, const uint8_t *end)
{
    return end - text >= WRITTEN_BYTES && memcmp(text, written_space, WRITTEN_BYTES) == 0;
}

size_t sli_read_spaces(char *text, size_t bytes)
{
    const uint8_t *next = (const uint8_t *)text, *end = next + bytes;
    char *to = text;
    while (next < end) {
        bool is_space = is_written_space(next, end);
        *to++ = is_space ? ' ' : (char)*next;
        next += is_space ? WRITTEN_BYTES : 1;
    }
    return (size_t)(to - text);
}

bool sli_begins_with_space(const uint8_t *text, const uint8_t *end)
{
    return text < end && (*text == ' ' || is_written_space(text, end));
}

sl_status sli_copy_spaces(const uint8_t *begin, const uint8_t *end, bool prefix, uint8_t **copy,
                          size_t *bytes)
{
    size_t count = (size_t)(end - begin);
    *copy = malloc(count + 1);
    if (!*copy)
        return sli_no_memory(NULL, "%zu bytes of text", count);
    if (prefix)
        **copy = ' ';
    memcpy(*copy + prefix, begin, count);
    *bytes = prefix + sli_read_spaces((char *)*copy + prefix, count);
    return SL_OK;
}

/* ---- Splitting ---------------------------------------------------------------------------- */

static const uint8_t *find_space(const uint8_t *from, const uint8_t *end)
{
    const uint8_t *space = memchr(from, ' ', (size_t)(end - from));
    return space ? space : end;
}

static const uint8_t *split_before_spaces(const uint8_t *from, const uint8_t *end)
{
    return find_space(from + 1, end);
}

static const uint8_t *split_before_words(const uint8_t *from, const uint8_t *end)
{
    while (from < end && *from == ' ')
        from++;
    return find_space(from, end);
}

static const uint8_t *split_nowhere(const uint8_t *from, const uint8_t *end)
{
    (void)from;
    return end;
}

const sli_splitter sli_before_spaces = {.name = "before spaces", .next = split_before_spaces};
const sli_splitter sli_before_words = {.name = "before words", .next = split_before_words};
const sli_splitter sli_nowhere = {.name = "nowhere", .next = split_nowhere};

static bool reaches_across(sl_token token)
{
    for (size_t i = 1; i < token.bytes; i++)
        if (token.text[i] == ' ' && token.text[i - 1] != ' ')
            return true;
    return false;
}

void sli_bpe_split_where_none_reaches(sli_bpe *bpe)
{
    bpe->split = &sli_before_words;
    for (size_t i = 0; i <= bpe->mask; i++)
        if (bpe->merges[i].rank != SLI_NO_MERGE &&
            reaches_across(sli_token_table_get(&bpe->tokens, bpe->merges[i].made)))
            bpe->split = &sli_nowhere;
}
