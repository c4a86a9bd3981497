/* What lines of text become: the tokenizer's ids before a text and its end of text behind it, and
 * for what the model should learn to say, marks. */
#include "text/lines.h"

#include "core/error.h"
#include "text/bpe.h"

#include <string.h>

static sl_status refuse(const char *what)
{
    return sl_error(SL_ERR_FORMAT, "%s", what);
}

/* The special ids that the tokenizer has before a text. */
static sl_status add_begin(const sl_vocab *vocab, sli_scored_ids *row)
{
    const sli_bpe *bpe = vocab->bpe;
    for (size_t i = 0; bpe && i < bpe->before; i++)
        SL_TRY(sli_scored_ids_add(row, bpe->around[i], false));
    return SL_OK;
}

static sl_status add_end(const sl_vocab *vocab, sli_scored_ids *row)
{
    int32_t end = sl_vocab_end(vocab);
    return end >= 0 ? sli_scored_ids_add(row, end, true) : SL_OK;
}

static sl_status encode_text(const sl_vocab *vocab, const json_t *text, sli_scored_ids *row)
{
    if (!json_is_string(text) || json_string_length(text) == 0)
        return refuse("\"text\" must be a text that is not empty");
    SL_TRY(add_begin(vocab, row));
    SL_TRY(sli_scored_ids_add_text(row, vocab, "", json_string_value(text),
                                   json_string_length(text), true));
    return add_end(vocab, row);
}

static sl_status encode_completion(const sli_line_reading *reading, const json_t *prompt,
                                   const json_t *completion, sli_scored_ids *row)
{
    if (!json_is_string(prompt))
        return refuse("\"prompt\" must be a text beside \"completion\"");
    if (!json_is_string(completion) || json_string_length(completion) == 0)
        return refuse("\"completion\" must be a text that is not empty");
    SL_TRY(add_begin(reading->vocab, row));
    SL_TRY(sli_scored_ids_add_text(row, reading->vocab, "", json_string_value(prompt),
                                   json_string_length(prompt), !reading->mask_prompt));
    SL_TRY(sli_scored_ids_add_text(row, reading->vocab, "", json_string_value(completion),
                                   json_string_length(completion), true));
    return add_end(reading->vocab, row);
}

static sl_status add_message(const sli_line_reading *reading, const json_t *message,
                             sli_scored_ids *row)
{
    const json_t *content = json_object_get(message, "content");
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role || !*role)
        return refuse("every message must have a \"role\"");
    if (!json_is_string(content))
        return refuse("every message must have a \"content\", a text");
    bool says = strcmp(role, "assistant") == 0;
    if (says && json_string_length(content) == 0)
        return refuse("what the assistant says must not be empty");
    return sli_chat_add(&reading->chat, role, json_string_value(content),
                        json_string_length(content), says, row);
}

static sl_status encode_messages(sli_line_reading *reading, const json_t *messages,
                                 sli_scored_ids *row)
{
    size_t i, count = json_array_size(messages);
    json_t *message;
    const char *last =
        json_string_value(json_object_get(json_array_get(messages, count - 1), "role"));
    if (count == 0)
        return refuse("\"messages\" must be a list that is not empty");
    if (last && strcmp(last, "assistant") != 0)
        return refuse("a conversation must end with what the assistant says");
    if (!reading->has_chat)
        SL_TRY(sli_chat_find(reading->vocab, &reading->chat));
    reading->has_chat = true;
    const char *first = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    SL_TRY(sli_chat_begin(&reading->chat, first ? first : "", row));
    json_array_foreach(messages, i, message) SL_TRY(add_message(reading, message, row));
    for (i = 0; i < row->count && !reading->mask_prompt; i++)
        row->scored[i] = true;
    return SL_OK;
}

sl_status sli_line_encode(sli_line_reading *reading, const json_t *line, sli_scored_ids *row)
{
    const json_t *text = json_object_get(line, "text"),
                 *completion = json_object_get(line, "completion"),
                 *messages = json_object_get(line, "messages");
    if (!text && !completion && !messages)
        return refuse("it must have \"input_ids\", \"text\", \"prompt\" and \"completion\", or "
                      "\"messages\"");
    if (!reading->vocab)
        return sl_error(SL_ERR_NOT_FOUND,
                        "it has text, and there is no tokenizer that is read (--tokenizer)");
    if (messages)
        return encode_messages(reading, messages, row);
    return text ? encode_text(reading->vocab, text, row)
                : encode_completion(reading, json_object_get(line, "prompt"), completion, row);
}
