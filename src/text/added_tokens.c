/* Added tokens in texts, by the rules of Hugging Face's tokenizers (added_vocabulary.rs): the one
 * that begins first, of those the longest. One that may not stand where it is found (a special
 * one, one that must be a single word) is text, also what of another one lies in it. */
#include "text/added_tokens.h"

#include "core/error.h"
#include "core/memory.h"
#include "text/splitters.h"

#include <stdlib.h>
#include <string.h>
#include <unictype.h>
#include <unistr.h>

/* ---- The list ----------------------------------------------------------------------------- */

sl_status sli_added_tokens_add(sli_added_tokens *added, const sli_added_token *token)
{
    SL_TRY(sli_array_reserve(&added->all, &added->room, added->count + 1, sizeof *added->all,
                             INT32_MAX, "added tokens"));
    added->all[added->count++] = *token;
    return SL_OK;
}

void sli_added_tokens_free(sli_added_tokens *added)
{
    free(added->all);
    free(added->bytes);
    *added = (sli_added_tokens){0};
}

static int compare_bytes(const sl_token *a, const sl_token *b)
{
    if (a->text[0] != b->text[0])
        return (unsigned char)a->text[0] < (unsigned char)b->text[0] ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return memcmp(a->text, b->text, a->bytes);
}

static int by_place(const void *left, const void *right)
{
    const sli_added_token *a = left, *b = right;
    if (a->normalized != b->normalized)
        return a->normalized ? 1 : -1;
    return compare_bytes(&a->content, &b->content);
}

/* What is looked for: the content, behind its prefix. */
static sl_token sought(const sli_added_tokens *added, const sli_added_token *token)
{
    size_t prefix = token->normalized ? added->prefix : 0;
    return (sl_token){token->content.text - prefix, token->content.bytes + prefix};
}

/* A text is cut at a blank or behind a line end. */
static bool reaches_across_cuts(const sli_added_token *token)
{
    return !token->special && (token->lstrip || token->rstrip ||
                               memchr(token->content.text, ' ', token->content.bytes) ||
                               memchr(token->content.text, '\n', token->content.bytes));
}

static void find_begins(sli_added_tokens *added)
{
    size_t i = 0;
    for (int normalized = 0; normalized < 2; normalized++)
        for (int byte = 0; byte <= 256; byte++) {
            added->begins[normalized][byte] = i;
            for (; i < added->count && (int)added->all[i].normalized == normalized &&
                   (unsigned char)sought(added, &added->all[i]).text[0] == byte;
                 i++) {
                added->has_ordinary[normalized] |= !added->all[i].special;
                added->reaches |= reaches_across_cuts(&added->all[i]);
            }
        }
}

sl_status sli_added_tokens_finish(sli_added_tokens *added, bool prefix)
{
    size_t bytes = 1;
    added->prefix = prefix;
    for (size_t i = 0; i < added->count; i++)
        bytes += added->all[i].content.bytes + 2;
    char *next = added->bytes = malloc(bytes);
    if (!next)
        return sli_no_memory(NULL, "%zu added tokens", added->count);
    for (size_t i = 0; i < added->count; i++) {
        sl_token *content = &added->all[i].content;
        *next++ = ' ';
        memcpy(next, content->text, content->bytes);
        next[content->bytes] = '\0';
        content->text = next;
        next += content->bytes + 1;
    }
    if (added->count > 0)
        qsort(added->all, added->count, sizeof *added->all, by_place);
    find_begins(added);
    return SL_OK;
}

const sli_added_token *sli_added_tokens_find(const sli_added_tokens *added, const char *text,
                                             size_t bytes)
{
    for (int normalized = 0; bytes > 0 && added->count > 0 && normalized < 2; normalized++) {
        const sli_added_token key = {.normalized = normalized, .content = {text, bytes}};
        const sli_added_token *found =
            bsearch(&key, added->all, added->count, sizeof *added->all, by_place);
        if (found)
            return found;
    }
    return NULL;
}

/* ---- Matching ----------------------------------------------------------------------------- */

static bool is_word_character(ucs4_t code)
{
    return uc_is_property_alphabetic(code) || uc_is_property_join_control(code) ||
           uc_is_general_category_withtable(code, UC_CATEGORY_MASK_M | UC_CATEGORY_MASK_Nd |
                                                      UC_CATEGORY_MASK_Pc);
}

static bool is_single_word(const uint8_t *text, const uint8_t *end, const sli_added_match *match)
{
    ucs4_t code;
    if (match->begin > text && u8_prev(&code, match->begin, text) && is_word_character(code))
        return false;
    if (match->end == end)
        return true;
    u8_mbtouc_unsafe(&code, match->end, (size_t)(end - match->end));
    return !is_word_character(code);
}

/* Takes the white space before, but not what a match before has taken, and behind. */
static void widen(const sli_added_token *token, const uint8_t *start, const uint8_t *end,
                  sli_added_match *match)
{
    ucs4_t code;
    const uint8_t *before;
    while (token->lstrip && match->begin > start &&
           (before = u8_prev(&code, match->begin, start)) && sli_is_white_space(code))
        match->begin = before;
    while (token->rstrip && match->end < end) {
        int length = u8_mbtouc_unsafe(&code, match->end, (size_t)(end - match->end));
        if (!sli_is_white_space(code))
            break;
        match->end += length;
    }
}

/* The longest token at a place; NULL: there is none. */
static const sli_added_token *longest_at(const sli_added_tokens *added, bool normalized,
                                         const uint8_t *place, const uint8_t *end)
{
    size_t left = (size_t)(end - place);
    for (size_t i = added->begins[normalized][*place]; i < added->begins[normalized][*place + 1];
         i++) {
        sl_token token = sought(added, &added->all[i]);
        if (token.bytes <= left && memcmp(token.text, place, token.bytes) == 0)
            return &added->all[i];
    }
    return NULL;
}

bool sli_added_tokens_next(const sli_added_tokens *added, bool normalized, bool special,
                           const uint8_t *text, const uint8_t *start, const uint8_t *end,
                           sli_added_match *out)
{
    bool any = special ? added->begins[normalized][256] > added->begins[normalized][0]
                       : added->has_ordinary[normalized];
    for (const uint8_t *place = start; any && place < end;) {
        const sli_added_token *token = longest_at(added, normalized, place, end);
        if (!token) {
            place++;
            continue;
        }
        *out = (sli_added_match){place, place + sought(added, token).bytes, token->id};
        place = out->end;
        if ((token->special && !special) || (token->single_word && !is_single_word(text, end, out)))
            continue;
        widen(token, start, end, out);
        return true;
    }
    return false;
}
