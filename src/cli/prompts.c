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
    sl_status status = SL_OK;
    if (out->count == 0)
        status =
            sl_error(SL_ERR_INVALID, "a prompt must have at least one token, got \"%s\"", text);
    else if (model->prints && sl_vocab_has_words(model->vocab))
        status = warn_unknown_words(model->vocab, text);
    if (status != SL_OK)
        sl_tokens_free(out);
    return status;
}

/* ---- A file's ----------------------------------------------------------------------------- */

typedef struct prompt {
    char *line;         /* of the file, as it is, without blanks around it; NULL: it is printed */
    bool answers;       /* a conversation */
    int64_t prompt_ids; /* how many of its ids it came with */
    bool ended;
} prompt;

typedef struct prompts {
    const cli_prompts_options *options;
    const cli_saved_model *model;
    bool is_json;   /* the file's lines are */
    prompt *all;    /* [count] */
    sl_text *texts; /* [count] */
    int64_t count, room, printed;
} prompts;

static void clear_prompt(prompts *self, int64_t number)
{
    free(self->all[number].line);
    free(self->texts[number].ids);
    self->all[number].line = NULL;
    self->texts[number].ids = NULL;
}

static void clear_prompts(prompts *self)
{
    for (int64_t i = 0; i < self->count; i++)
        clear_prompt(self, i);
    free(self->all);
    free(self->texts);
}

/* The messages of a conversation, which are borrowed from it. */
static sl_status read_messages(const json_t *list, sl_message *messages)
{
    size_t i;
    json_t *message;
    const char *role = "";
    json_array_foreach(list, i, message)
    {
        role = messages[i].role = json_string_value(json_object_get(message, "role"));
        messages[i].content = json_string_value(json_object_get(message, "content"));
        if (!role || !*role || !messages[i].content)
            return sl_error(SL_ERR_FORMAT,
                            "message %zu must have a \"role\" and a \"content\", texts", i + 1);
    }
    return strcmp(role, "assistant") != 0
               ? SL_OK
               : sl_error(SL_ERR_FORMAT, "a conversation must not end with what the assistant "
                                         "says, which is to be written");
}

static sl_status encode_messages(const cli_saved_model *model, const json_t *list, sl_tokens *out)
{
    size_t count = json_array_size(list);
    if (count == 0)
        return sl_error(SL_ERR_FORMAT, "\"messages\" must be a list that is not empty");
    sl_message *messages = cli_allocate(count, sizeof *messages);
    sl_status status;
    SL_TRY_OR_FAIL(read_messages(list, messages));
    SL_TRY_OR_FAIL(sl_chat_encode(model->vocab, messages, count, out));
fail:
    free(messages);
    return status;
}

static sl_status encode_json(const prompts *self, const json_t *line, sl_tokens *out)
{
    const json_t *text = json_object_get(line, "prompt"),
                 *messages = json_object_get(line, "messages");
    if (!json_is_object(line))
        return sl_error(SL_ERR_FORMAT, "it must be a JSON object");
    if (!text && !messages)
        return sl_error(SL_ERR_FORMAT, "it must have \"prompt\" or \"messages\"");
    if (text && messages)
        return sl_error(SL_ERR_FORMAT, "it must have one of \"prompt\" and \"messages\", not both");
    if (self->options->json && json_object_get(line, "text"))
        return sl_error(SL_ERR_FORMAT, "it has a \"text\", the name of what --json adds");
    if (messages)
        return encode_messages(self->model, messages, out);
    if (!json_is_string(text))
        return sl_error(SL_ERR_FORMAT, "\"prompt\" must be a text");
    return cli_prompt_encode(self->model, json_string_value(text), out);
}

static sl_status encode_line(const prompts *self, const char *line, prompt *one, sl_tokens *out)
{
    json_error_t error;
    if (!self->is_json)
        return cli_prompt_encode(self->model, line, out);
    json_t *json = json_loads(line, JSON_REJECT_DUPLICATES, &error);
    one->answers = json_object_get(json, "messages");
    sl_status status =
        json ? encode_json(self, json, out)
             : sl_error(SL_ERR_FORMAT, "it is no JSON: column %d: %s", error.column, error.text);
    json_decref(json);
    return status;
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

/* Without the blanks around it where it is JSON. */
static char *copy_line(const prompts *self, const char *line)
{
    const char *blanks = " \t\r";
    size_t bytes = strlen(line), first = self->is_json ? strspn(line, blanks) : 0;
    while (self->is_json && bytes > first && strchr(blanks, line[bytes - 1]))
        bytes--;
    char *copy = cli_allocate(bytes - first + 1, 1);
    memcpy(copy, line + first, bytes - first);
    return copy;
}

static sl_status add_prompt(prompts *self, const char *line)
{
    sl_tokens tokens = {0};
    reserve_prompts(self);
    int64_t number = self->count++;
    prompt *one = &self->all[number];
    *one = (prompt){NULL};
    self->texts[number] = (sl_text){NULL};
    SL_TRY(encode_line(self, line, one, &tokens));
    one->line = copy_line(self, line);
    one->prompt_ids = tokens.count;
    /* A copy: the text grows by realloc, which ids of tokens that may be mapped cannot. */
    int32_t *ids = cli_allocate((size_t)tokens.count + 1, sizeof *ids);
    if (tokens.count > 0)
        memcpy(ids, tokens.ids, (size_t)tokens.count * sizeof *ids);
    self->texts[number] = (sl_text){.ids = ids, .length = tokens.count};
    sl_tokens_free(&tokens);
    return SL_OK;
}

static sl_status add_prompts(prompts *self, FILE *file)
{
    const char *path = self->options->path, *line;
    cli_lines lines = {.from = file, .name = path};
    sl_status status;
    while ((status = cli_lines_next(&lines, &line)) == SL_OK && line)
        SL_TRY_OR_FAIL(
            sl_error_context(add_prompt(self, line), "%s: line %" PRId64 ": ", path, lines.number));
    if (status == SL_OK && self->count == 0)
        status =
            sl_error(SL_ERR_FORMAT, "%s: expected a prompt on each line, but there is none", path);
fail:
    cli_lines_clear(&lines);
    return status;
}

/* All of the file: *content [*bytes], malloc'ed. */
static sl_status read_file(const char *path, char **content, int64_t *bytes)
{
    FILE *file = fopen(path, "r");
    size_t room = 0, count = 1;
    if (!file)
        return sl_error(SL_ERR_NOT_FOUND, "%s: cannot be opened: %s", path, strerror(errno));
    for (*bytes = 0; count > 0; *bytes += (int64_t)count) {
        if ((size_t)*bytes == room) {
            room = 2 * room + BUFSIZ;
            char *grown = cli_allocate(room, 1);
            if (*bytes > 0)
                memcpy(grown, *content, (size_t)*bytes);
            free(*content);
            *content = grown;
        }
        count = fread(*content + *bytes, 1, room - (size_t)*bytes, file);
    }
    sl_status status = ferror(file) ? sl_error(SL_ERR_IO, "%s: %s", path, strerror(errno)) : SL_OK;
    fclose(file);
    return status;
}

/* The first process reads, so that all have the same prompts. */
static sl_status read_together(const prompts *self, char **content, int64_t *bytes)
{
    sl_group *group = sl_pipe_group(self->model->pipe);
    bool reads = self->model->prints;
    if (reads)
        SL_TRY(read_file(self->options->path, content, bytes));
    if (!group)
        return SL_OK;
    SL_TRY(sl_group_broadcast(group, bytes, 1, SL_I64, 0, NULL));
    int64_t words = *bytes / (int64_t)sizeof(int32_t) + 1;
    char *all = cli_allocate((size_t)words, sizeof(int32_t));
    if (reads)
        memcpy(all, *content, (size_t)*bytes);
    free(*content);
    *content = all;
    return sl_group_broadcast(group, all, words, SL_I32, 0, NULL);
}

static sl_status read_prompts(prompts *self)
{
    char *content = NULL;
    int64_t bytes = 0;
    FILE *file = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(read_together(self, &content, &bytes));
    file = bytes > 0 ? fmemopen(content, (size_t)bytes, "r") : fopen("/dev/null", "r");
    status = file ? add_prompts(self, file)
                  : sl_error(SL_ERR_MEMORY, "%s: no memory for its lines", self->options->path);
fail:
    if (file)
        fclose(file);
    free(content);
    return sl_pipe_abort(self->model->pipe, status);
}

static void warn_of_long_prompts(const prompts *self)
{
    int64_t context = self->options->generation->context, count = 0;
    for (int64_t i = 0; i < self->count; i++)
        count += self->texts[i].length > context;
    if (count > 0)
        cli_complain("warning: %" PRId64 " of %" PRId64 " prompts have more than %" PRId64
                     " tokens, of which the model sees the last (--context)",
                     count, self->count, context);
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

/* The prompt's line with what was added; an answer stands alone. */
static sl_status print_json(const prompts *self, int64_t number)
{
    const prompt *one = &self->all[number];
    const sl_text *text = &self->texts[number];
    cli_made_text made = {.vocab = self->model->vocab, .quiet = true};
    size_t before = 0;
    for (int64_t i = one->answers ? one->prompt_ids : 0; i < text->length; i++) {
        if (i == one->prompt_ids)
            before = made.bytes;
        SL_TRY(cli_made_text_add(&made, text->ids[i]));
    }
    json_t *begin = self->is_json ? NULL : json_pack("{so}", "prompt", text_value(one->line)),
           *added = text_value(made.text ? made.text + before : "");
    char *line = self->is_json ? strdup(one->line) : json_dumps(begin, 0),
         *value = json_dumps(added, JSON_ENCODE_ANY);
    bool is_made = line && value;
    if (is_made) /* the line as it is, whose numbers stay the same */
        printf("%.*s, \"text\": %s}\n", (int)strlen(line) - 1, line, value);
    cli_made_text_clear(&made);
    json_decref(begin);
    json_decref(added);
    free(line);
    free(value);
    return is_made ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for a text");
}

static sl_status print_block(const prompts *self, int64_t number)
{
    const prompt *one = &self->all[number];
    const sl_text *text = &self->texts[number];
    cli_made_text made = {.vocab = self->model->vocab};
    sl_status status;
    if (number > 0)
        puts("");
    for (int64_t i = one->answers ? one->prompt_ids : 0; i < text->length; i++)
        SL_TRY_OR_FAIL(cli_made_text_add(&made, text->ids[i]));
    SL_TRY_OR_FAIL(cli_made_text_end(&made));
fail:
    cli_made_text_clear(&made);
    return status;
}

static sl_status set_room(prompts *self, int64_t number, int64_t room)
{
    sl_text *text = &self->texts[number];
    int32_t *ids = realloc(text->ids, (size_t)room * sizeof *ids);
    if (!ids)
        return sl_error(SL_ERR_MEMORY, "no memory for a text of %" PRId64 " tokens", room);
    text->ids = ids;
    return SL_OK;
}

static sl_status begin_text(void *context, int64_t number)
{
    prompts *self = context;
    return set_room(self, number, self->texts[number].length + self->options->tokens);
}

/* Prints it, and those behind it that have waited for it. */
static sl_status end_text(void *context, int64_t number)
{
    prompts *self = context;
    self->all[number].ended = true;
    SL_TRY(set_room(self, number, self->texts[number].length));
    for (; self->printed < self->count && self->all[self->printed].ended; self->printed++) {
        if (self->model->prints)
            SL_TRY(self->options->json ? print_json(self, self->printed)
                                       : print_block(self, self->printed));
        clear_prompt(self, self->printed);
    }
    return self->model->prints ? cli_flush() : SL_OK;
}

static sl_status write_texts(prompts *self)
{
    sl_generate_options generation = *self->options->generation;
    generation.begun = begin_text;
    generation.ended = end_text;
    generation.context_of_added = self;
    if (self->model->prints)
        warn_of_long_prompts(self);
    return sl_generate_texts(self->model->pipe, &generation, self->texts, self->count,
                             self->options->tokens);
}

sl_status cli_prompts_run(const cli_prompts_options *options, const cli_saved_model *model)
{
    prompts self = {.options = options,
                    .model = model,
                    .is_json = cli_name_ends_with(options->path, ".jsonl")};
    sl_status status;
    SL_TRY_OR_FAIL(read_prompts(&self));
    SL_TRY_OR_FAIL(write_texts(&self));
fail:
    clear_prompts(&self);
    return status;
}
