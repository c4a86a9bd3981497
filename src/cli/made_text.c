/* Printing a text while it is made. A token may end within a character: its bytes wait for the next
 * one's. */
#include "cli/cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void append(cli_made_text *made, const char *text, size_t bytes)
{
    if (made->bytes + bytes >= made->room) {
        made->room = 2 * (made->bytes + bytes) + 64;
        char *grown = cli_allocate(made->room, 1);
        if (made->bytes > 0)
            memcpy(grown, made->text, made->bytes);
        free(made->text);
        made->text = grown;
    }
    for (size_t i = 0; i < bytes; i++) /* nothing that is printed has a zero */
        made->text[made->bytes++] = text[i] ? text[i] : ' ';
    made->text[made->bytes] = '\0';
}

/* How many of the bytes end with a character: all, or all but the begin of one. */
static size_t whole_characters(const char *text, size_t bytes)
{
    for (size_t left = 1; left <= 3 && left <= bytes; left++) {
        unsigned char byte = (unsigned char)text[bytes - left];
        size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
        if (length > left)
            return bytes - left;
        if (byte < 0x80 || byte >= 0xC0)
            return bytes;
    }
    return bytes;
}

static sl_status print_up_to(cli_made_text *made, size_t bytes)
{
    if (made->quiet)
        return SL_OK;
    char *part = cli_allocate(bytes - made->shown + 1, 1);
    memcpy(part, made->text + made->shown, bytes - made->shown);
    char *escaped = sl_escape_text(part, true);
    fputs(escaped ? escaped : "?", stdout);
    free(escaped);
    free(part);
    made->shown = bytes;
    return cli_flush();
}

/* The first token's text is as sl_tokens_decode has it: without a space before a word. */
static void append_token(cli_made_text *made, int32_t id)
{
    char *text = NULL;
    size_t bytes = 0;
    if (made->count > 0 && !sl_vocab_has_words(made->vocab)) {
        sl_token token = sl_vocab_token(made->vocab, id);
        append(made, token.text, token.bytes);
        return;
    }
    if (made->count > 0)
        append(made, " ", 1);
    if (sl_tokens_decode(made->vocab, &id, 1, &text, &bytes) == SL_OK)
        append(made, text, bytes);
    free(text);
}

sl_status cli_made_text_add(cli_made_text *made, int32_t id)
{
    if (!made->vocab) {
        printf("%s%" PRId32, made->count++ > 0 ? " " : "", id);
        return cli_flush();
    }
    if (sl_vocab_is_special(made->vocab, id))
        return SL_OK;
    append_token(made, id);
    made->count++;
    size_t whole = whole_characters(made->text, made->bytes);
    return whole > made->shown ? print_up_to(made, whole) : SL_OK;
}

sl_status cli_made_text_end(cli_made_text *made)
{
    if (made->shown < made->bytes)
        SL_TRY(print_up_to(made, made->bytes));
    puts("");
    return cli_flush();
}

void cli_made_text_clear(cli_made_text *made)
{
    free(made->text);
    *made = (cli_made_text){NULL};
}
