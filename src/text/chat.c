/* Templates are Jinja programs. Two are built in and recognised by the marks that they write; one
 * that does more with plain messages (reasoning, dates) is refused, and the way out is to render
 * conversations beforehand. */
#define _GNU_SOURCE /* asprintf */
#include "text/chat.h"

#include "core/error.h"
#include "core/memory.h"
#include "text/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- A row's ids -------------------------------------------------------------------------- */

void sli_scored_ids_free(sli_scored_ids *row)
{
    free(row->ids);
    free(row->scored);
    *row = (sli_scored_ids){NULL};
}

sl_status sli_scored_ids_add(sli_scored_ids *row, int32_t id, bool scored)
{
    SL_TRY(sli_array_reserve(&row->ids, &row->ids_room, row->count + 1, sizeof *row->ids,
                             SIZE_MAX / 16, "token ids"));
    SL_TRY(sli_array_reserve(&row->scored, &row->scored_room, row->count + 1, sizeof *row->scored,
                             SIZE_MAX / 16, "marks of tokens"));
    row->ids[row->count] = id;
    row->scored[row->count++] = scored;
    return SL_OK;
}

/* How many of the first ids of a text are those of its prefix: one that has bytes of both counts as
 * the text's. */
static sl_status count_prefix(const sl_vocab *vocab, const char *prefix, const sl_tokens *all,
                              int64_t *count)
{
    sl_tokens tokens;
    SL_TRY(sl_tokens_encode(vocab, prefix, strlen(prefix), false, &tokens));
    for (*count = 0; *count < tokens.count && *count < all->count; ++*count)
        if (tokens.ids[*count] != all->ids[*count])
            break;
    sl_tokens_free(&tokens);
    return SL_OK;
}

sl_status sli_scored_ids_add_text(sli_scored_ids *row, const sl_vocab *vocab, const char *prefix,
                                  const char *text, size_t bytes, bool scored)
{
    size_t before = strlen(prefix);
    int64_t unscored = 0;
    sl_tokens tokens = {0};
    char *joined = malloc(before + bytes + 1);
    if (!joined)
        return sli_no_memory(NULL, "a text of %zu bytes", bytes);
    memcpy(joined, prefix, before + 1);
    memcpy(joined + before, text, bytes);
    sl_status status;
    SL_TRY_OR_FAIL(sl_tokens_encode(vocab, joined, before + bytes, false, &tokens));
    if (scored && before > 0)
        SL_TRY_OR_FAIL(count_prefix(vocab, prefix, &tokens, &unscored));
    for (int64_t i = 0; i < tokens.count; i++)
        SL_TRY_OR_FAIL(sli_scored_ids_add(row, tokens.ids[i], scored && i >= unscored));
fail:
    sl_tokens_free(&tokens);
    free(joined);
    return status;
}

/* ---- Recognising a template --------------------------------------------------------------- */

static const char *const marks_of[][SLI_CHAT_MARKS] = {
    [SLI_CHATML] = {"<|im_start|>", "<|im_end|>"},
    [SLI_CHAT_LLAMA3] = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                         "<|eot_id|>"},
};

/* "chat_template" is a text, or a list of named ones, of which "default" counts. */
static const char *template_of(const json_t *settings)
{
    const json_t *given = json_object_get(settings, "chat_template");
    size_t i;
    json_t *entry;
    json_array_foreach(given, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(entry, "template"));
    }
    return json_string_value(given);
}

static sl_status find_marks(const char *text, sli_chat *chat)
{
    static const char *const more[] = {"think", "reasoning", "Cutting Knowledge"};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (strstr(text, more[i]))
            return SL_ERR_UNSUPPORTED;
    for (int kind = SLI_CHATML; kind <= SLI_CHAT_LLAMA3; kind++) {
        /* The first mark may be written as bos_token. */
        if (!strstr(text, marks_of[kind][1]))
            continue;
        chat->kind = (sli_chat_kind)kind;
        for (int i = 0; i < SLI_CHAT_MARKS && marks_of[kind][i]; i++) {
            const char *mark = marks_of[kind][i];
            chat->marks[i] = sl_vocab_id(chat->vocab, mark, strlen(mark));
            if (chat->marks[i] < 0 || sl_vocab_has_words(chat->vocab))
                return SL_ERR_UNSUPPORTED;
        }
        return SL_OK;
    }
    return SL_ERR_UNSUPPORTED;
}

/* The message that ChatML's templates put first, a literal between the system's marks. */
static sl_status find_system(const char *text, sli_chat *chat)
{
    static const char begin[] = "<|im_start|>system", end[] = "<|im_end|>";
    const char *place = chat->kind == SLI_CHATML ? strstr(text, begin) : NULL;
    if (!place)
        return SL_OK;
    place += sizeof begin - 1;
    place += strncmp(place, "\\n", 2) == 0 ? 2 : *place == '\n';
    const char *stop = strstr(place, end);
    size_t bytes = stop ? (size_t)(stop - place) : 0;
    if (bytes == 0 || strcspn(place, "'\"{}") < bytes)
        return SL_OK; /* no literal: the template has none of its own */
    chat->system = strndup(place, bytes);
    return chat->system ? SL_OK : sli_no_memory(NULL, "a template");
}

static sl_status recognise(const json_t *settings, sli_chat *chat)
{
    enum { SHOWN = 80 };
    static const char way_out[] =
        "render conversations beforehand, as lines with \"prompt\" and \"completion\"";
    const char *text = template_of(settings);
    if (!text)
        return sl_error(SL_ERR_NOT_FOUND,
                        "the tokenizer has no chat_template in its tokenizer_config.json: %s",
                        way_out);
    if (find_marks(text, chat) != SL_OK)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "the tokenizer's chat_template is neither ChatML nor Llama 3's, but "
                        "\"%.*s…\": %s",
                        SHOWN, text, way_out);
    return find_system(text, chat);
}

sl_status sli_chat_find(const sl_vocab *vocab, sli_chat *out)
{
    *out = (sli_chat){.vocab = vocab};
    json_t *settings = vocab->settings ? json_loads(vocab->settings, 0, NULL) : NULL;
    sl_status status = recognise(settings, out);
    json_decref(settings);
    return status;
}

void sli_chat_clear(sli_chat *chat)
{
    free(chat->system);
    *chat = (sli_chat){NULL};
}

/* ---- Writing ------------------------------------------------------------------------------ */

sl_status sli_chat_begin(const sli_chat *chat, const char *first_role, sli_scored_ids *row)
{
    if (chat->kind == SLI_CHAT_LLAMA3)
        return sli_scored_ids_add(row, chat->marks[0], false);
    if (!chat->system || strcmp(first_role, "system") == 0)
        return SL_OK;
    return sli_chat_add(chat, "system", chat->system, strlen(chat->system), false, row);
}

static sl_status add_chatml(const sli_chat *chat, const char *role, const char *content,
                            size_t bytes, bool scored, sli_scored_ids *row)
{
    char *head;
    SL_TRY(sli_scored_ids_add(row, chat->marks[0], false));
    if (asprintf(&head, "%s\n", role) < 0)
        return sli_no_memory(NULL, "a role");
    sl_status status = sli_scored_ids_add_text(row, chat->vocab, head, content, bytes, scored);
    free(head);
    SL_TRY(status);
    SL_TRY(sli_scored_ids_add(row, chat->marks[1], scored));
    return sli_scored_ids_add_text(row, chat->vocab, "", "\n", 1, false);
}

/* As Jinja's trim does. */
static void trim(const char **text, size_t *bytes)
{
    while (*bytes > 0 && strchr(" \t\r\n\v\f", **text)) {
        ++*text;
        --*bytes;
    }
    while (*bytes > 0 && strchr(" \t\r\n\v\f", (*text)[*bytes - 1]))
        --*bytes;
}

static sl_status add_llama3(const sli_chat *chat, const char *role, const char *content,
                            size_t bytes, bool scored, sli_scored_ids *row)
{
    trim(&content, &bytes);
    SL_TRY(sli_scored_ids_add(row, chat->marks[1], false));
    SL_TRY(sli_scored_ids_add_text(row, chat->vocab, "", role, strlen(role), false));
    SL_TRY(sli_scored_ids_add(row, chat->marks[2], false));
    SL_TRY(sli_scored_ids_add_text(row, chat->vocab, "\n\n", content, bytes, scored));
    return sli_scored_ids_add(row, chat->marks[3], scored);
}

sl_status sli_chat_add(const sli_chat *chat, const char *role, const char *content, size_t bytes,
                       bool scored, sli_scored_ids *row)
{
    return (chat->kind == SLI_CHATML ? add_chatml : add_llama3)(chat, role, content, bytes, scored,
                                                                row);
}

/* The head of a message whose content is to be written. */
static sl_status add_head(const sli_chat *chat, const char *role, sli_scored_ids *row)
{
    if (chat->kind == SLI_CHAT_LLAMA3) {
        SL_TRY(sli_scored_ids_add(row, chat->marks[1], false));
        SL_TRY(sli_scored_ids_add_text(row, chat->vocab, "", role, strlen(role), false));
        SL_TRY(sli_scored_ids_add(row, chat->marks[2], false));
        return sli_scored_ids_add_text(row, chat->vocab, "", "\n\n", 2, false);
    }
    SL_TRY(sli_scored_ids_add(row, chat->marks[0], false));
    return sli_scored_ids_add_text(row, chat->vocab, role, "\n", 1, false);
}

sl_status sl_chat_encode(const sl_vocab *vocab, const sl_message *messages, size_t count,
                         sl_tokens *out)
{
    sli_chat chat;
    sli_scored_ids row = {NULL};
    SLI_CHECK_NOT_NULL(vocab);
    SLI_CHECK_NOT_NULL(messages);
    SLI_CHECK_NOT_NULL(out);
    *out = (sl_tokens){0};
    if (count == 0)
        return sl_error(SL_ERR_INVALID, "sl_chat_encode: expected at least one message, got none");
    sl_status status;
    SL_TRY_OR_FAIL(sli_chat_find(vocab, &chat));
    SL_TRY_OR_FAIL(sli_chat_begin(&chat, messages[0].role, &row));
    for (size_t i = 0; i < count; i++)
        SL_TRY_OR_FAIL(sli_chat_add(&chat, messages[i].role, messages[i].content,
                                    strlen(messages[i].content), false, &row));
    SL_TRY_OR_FAIL(add_head(&chat, "assistant", &row));
    *out = (sl_tokens){.ids = row.ids, .count = (int64_t)row.count};
    row.ids = NULL;

fail:
    sli_scored_ids_free(&row);
    sli_chat_clear(&chat);
    return status;
}
