/* Prompts: what a line of a file begins, the texts that are written behind them, and how they are
 * printed. Texts end in any order, and are printed in that of the file. */
#include "cli/prompts.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Adds `token` in quotes to the list `words`, where it fits. */
static void add_word(char *words, size_t bytes, sl_token token)
{
    size_t used = strlen(words);
    if (used + token.bytes + sizeof ", \"\"" < bytes)
        snprintf(words + used, bytes - used, "%s\"%.*s\"", used ? ", " : "", (int)token.bytes,
                 token.text);
}

/* A prompt may ask for <unk> by its name. */
static sl_status warn_unknown_words(const sl_vocab *vocab, const char *prompt)
{
    const sl_token unknown = sl_vocab_token(vocab, SL_VOCAB_UNKNOWN);
    sl_tokenizer *tokenizer;
    sl_token token;
    char words[512] = "";
    SL_TRY(sl_tokenizer_create(&tokenizer));
    sl_status status = sl_tokenizer_start(tokenizer, prompt, strlen(prompt));
    while (status == SL_OK && sl_tokenizer_next(tokenizer, &token)) {
        bool is_name =
            token.bytes == unknown.bytes && memcmp(token.text, unknown.text, unknown.bytes) == 0;
        if (!is_name && sl_vocab_id(vocab, token.text, token.bytes) == SL_VOCAB_UNKNOWN)
            add_word(words, sizeof words, token);
    }
    sl_tokenizer_destroy(&tokenizer);
    if (words[0])
        cli_complain("warning: the vocabulary does not have these words of the prompt, which the "
                     "model sees as <unk>: %s",
                     words);
    return status;
}

sl_status cli_prompt_encode(const cli_saved_model *model, const char *text, sl_tokens *out)
{
    SL_TRY(sl_tokens_encode(model->vocab, text, strlen(text), true, out));
    if (out->count == 0)
        return sl_error(SL_ERR_INVALID, "a prompt must have at least one token, got \"%s\"", text);
    return model->prints && sl_vocab_has_words(model->vocab)
               ? warn_unknown_words(model->vocab, text)
               : SL_OK;
}

/* A line without its end, "\n" or "\r\n", until the next call; NULL: there is none. `name` is that
 * of the file in errors. */
sl_status cli_read_line(FILE *from, const char *name, char **room, size_t *bytes, const char **line)
{
    ssize_t length = getline(room, bytes, from);
    *line = NULL;
    if (length < 0)
        return ferror(from) ? sl_error(SL_ERR_IO, "%s: %s", name, strerror(errno)) : SL_OK;
    if (length > 0 && (*room)[length - 1] == '\n')
        (*room)[--length] = '\0';
    if (length > 0 && (*room)[length - 1] == '\r')
        (*room)[--length] = '\0';
    *line = *room;
    return SL_OK;
}

/* ---- A file's ----------------------------------------------------------------------------- */

typedef struct prompt {
    json_t *line;       /* of JSON lines; NULL: a text */
    char *text;         /* that; NULL: of JSON lines */
    int64_t prompt_ids; /* how many of its ids it came with */
    bool ended;
} prompt;

typedef struct prompts {
    const cli_prompts_options *options;
    const cli_saved_model *model;
    prompt *all;    /* [count] */
    sl_text *texts; /* [count] */
    int64_t count, room, printed;
    sl_status status; /* of printing */
} prompts;

static void clear_prompts(prompts *self)
{
    for (int64_t i = 0; i < self->count; i++) {
        json_decref(self->all[i].line);
        free(self->all[i].text);
        free(self->texts[i].ids);
    }
    free(self->all);
    free(self->texts);
}

/* The messages of a conversation, which are borrowed from it. */
static sl_status encode_messages(const cli_saved_model *model, const json_t *list, sl_tokens *out)
{
    size_t i, count = json_array_size(list);
    json_t *message;
    if (count == 0)
        return sl_error(SL_ERR_FORMAT, "\"messages\" must be a list that is not empty");
    sl_message *messages = cli_allocate(count, sizeof *messages);
    sl_status status = SL_OK;
    json_array_foreach(list, i, message)
    {
        messages[i].role = json_string_value(json_object_get(message, "role"));
        messages[i].content = json_string_value(json_object_get(message, "content"));
        if (!messages[i].role || !*messages[i].role || !messages[i].content)
            status = sl_error(SL_ERR_FORMAT,
                              "every message must have a \"role\" and a \"content\", texts");
    }
    if (status == SL_OK && strcmp(messages[count - 1].role, "assistant") == 0)
        status = sl_error(SL_ERR_FORMAT, "a conversation must not end with what the assistant "
                                         "says, which is to be written");
    if (status == SL_OK)
        status = sl_chat_encode(model->vocab, messages, count, out);
    free(messages);
    return status;
}

static sl_status encode_line(const cli_saved_model *model, const json_t *line, sl_tokens *out)
{
    const json_t *text = json_object_get(line, "prompt"),
                 *messages = json_object_get(line, "messages");
    if (!json_is_object(line) || !text == !messages)
        return sl_error(SL_ERR_FORMAT,
                        "it must be a JSON object with \"prompt\" or with \"messages\"");
    if (messages)
        return encode_messages(model, messages, out);
    if (!json_is_string(text))
        return sl_error(SL_ERR_FORMAT, "\"prompt\" must be a text");
    return cli_prompt_encode(model, json_string_value(text), out);
}

static bool is_json_lines(const char *path)
{
    const char *end = strrchr(path, '.');
    return end && strcmp(end, ".jsonl") == 0;
}

static void reserve_prompts(prompts *self)
{
    if (self->count < self->room)
        return;
    int64_t room = 2 * self->room + 8;
    prompt *all = cli_allocate((size_t)room, sizeof *all);
    sl_text *texts = cli_allocate((size_t)room, sizeof *texts);
    if (self->count > 0) {
        memcpy(all, self->all, (size_t)self->count * sizeof *all);
        memcpy(texts, self->texts, (size_t)self->count * sizeof *texts);
    }
    free(self->all);
    free(self->texts);
    self->all = all;
    self->texts = texts;
    self->room = room;
}

static sl_status add_prompt(prompts *self, const char *line)
{
    json_error_t error;
    sl_tokens tokens = {0};
    reserve_prompts(self);
    int64_t number = self->count++;
    prompt *one = &self->all[number];
    *one = (prompt){NULL};
    self->texts[number] = (sl_text){NULL};
    if (is_json_lines(self->options->path)) {
        one->line = json_loads(line, 0, &error);
        SL_TRY(encode_line(self->model, one->line, &tokens));
    } else {
        one->text = cli_allocate(strlen(line) + 1, 1);
        strcpy(one->text, line);
        SL_TRY(cli_prompt_encode(self->model, line, &tokens));
    }
    one->prompt_ids = tokens.count;
    sl_text *text = &self->texts[number];
    text->length = tokens.count;
    text->ids = cli_allocate((size_t)(tokens.count + self->options->tokens), sizeof *text->ids);
    memcpy(text->ids, tokens.ids, (size_t)tokens.count * sizeof *text->ids);
    sl_tokens_free(&tokens);
    return SL_OK;
}

static sl_status read_prompts(prompts *self, FILE *file)
{
    const char *path = self->options->path, *line;
    char *room = NULL;
    size_t bytes = 0;
    int64_t number = 0;
    sl_status status;
    while ((status = cli_read_line(file, path, &room, &bytes, &line)) == SL_OK && line) {
        number++;
        if (*line)
            status =
                sl_error_context(add_prompt(self, line), "%s: line %" PRId64 ": ", path, number);
        if (status != SL_OK)
            break;
    }
    free(room);
    if (status == SL_OK && self->count == 0)
        status =
            sl_error(SL_ERR_FORMAT, "%s: expected a prompt on each line, but there is none", path);
    return status;
}

/* ---- Their texts -------------------------------------------------------------------------- */

/* The bytes of the character that begins here; 0: there is none. */
static size_t character_bytes(const unsigned char *text)
{
    size_t length = *text < 0x80 ? 1 : *text < 0xC2 ? 0 : *text < 0xE0 ? 2 : *text < 0xF0 ? 3 : 4;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xC0) != 0x80)
            return 0;
    json_t *value = length > 0 ? json_stringn((const char *)text, length) : NULL;
    json_decref(value);
    return value ? length : 0;
}

/* Bytes that are no character's, as a model may add them, become U+FFFD. */
static json_t *text_value(const char *text)
{
    json_t *value = json_string(text);
    if (value)
        return value;
    char *clean = cli_allocate(3 * strlen(text) + 1, 1), *end = clean;
    for (const char *at = text; *at;) {
        size_t length = character_bytes((const unsigned char *)at);
        memcpy(end, length > 0 ? at : "\xEF\xBF\xBD", length > 0 ? length : 3);
        end += length > 0 ? length : 3;
        at += length > 0 ? length : 1;
    }
    *end = '\0';
    value = json_string(clean);
    free(clean);
    return value;
}

/* What was added to a prompt: with it, it is the text. An answer stands alone. */
static sl_status print_json(const prompts *self, int64_t number)
{
    const prompt *one = &self->all[number];
    const sl_text *text = &self->texts[number];
    bool answers = one->line && json_object_get(one->line, "messages");
    cli_made_text made = {.vocab = self->model->vocab, .quiet = true};
    size_t before = 0;
    for (int64_t i = answers ? one->prompt_ids : 0; i < text->length; i++) {
        if (i == one->prompt_ids)
            before = made.bytes;
        cli_made_text_add(&made, 0, text->ids[i]);
    }
    json_t *json =
        one->line ? json_incref(one->line) : json_pack("{so}", "prompt", text_value(one->text));
    json_object_set_new(json, "text", text_value(made.text ? made.text + before : ""));
    cli_made_text_clear(&made);
    char *dumped = json ? json_dumps(json, JSON_REAL_PRECISION(17)) : NULL;
    json_decref(json);
    if (!dumped)
        return sl_error(SL_ERR_MEMORY, "no memory for a text");
    puts(dumped);
    free(dumped);
    return SL_OK;
}

static void print_block(const prompts *self, int64_t number)
{
    const prompt *one = &self->all[number];
    const sl_text *text = &self->texts[number];
    bool answers = one->line && json_object_get(one->line, "messages");
    cli_made_text made = {.vocab = self->model->vocab};
    if (number > 0)
        puts("");
    for (int64_t i = answers ? one->prompt_ids : 0; i < text->length; i++)
        cli_made_text_add(&made, 0, text->ids[i]);
    cli_made_text_end(&made);
    cli_made_text_clear(&made);
}

/* Prints it, and those behind it that have waited for it. */
static void end_text(void *context, int64_t number)
{
    prompts *self = context;
    self->all[number].ended = true;
    for (; self->printed < self->count && self->all[self->printed].ended; self->printed++) {
        if (!self->options->json)
            print_block(self, self->printed);
        else if (self->status == SL_OK)
            self->status = print_json(self, self->printed);
    }
    fflush(stdout);
}

static sl_status write_texts(prompts *self)
{
    sl_generate_options generation = *self->options->generation;
    if (self->model->prints) {
        generation.ended = end_text;
        generation.context_of_added = self;
    }
    SL_TRY(sl_generate_texts(self->model->pipe, &generation, self->texts, self->count,
                             self->options->tokens));
    return self->status;
}

sl_status cli_prompts_run(const cli_prompts_options *options, const cli_saved_model *model)
{
    prompts self = {.options = options, .model = model};
    FILE *file = fopen(options->path, "r");
    if (!file)
        return sl_error(SL_ERR_NOT_FOUND, "%s: cannot be opened: %s", options->path,
                        strerror(errno));
    sl_status status = read_prompts(&self, file);
    fclose(file);
    if (status == SL_OK)
        status = write_texts(&self);
    clear_prompts(&self);
    return status;
}
