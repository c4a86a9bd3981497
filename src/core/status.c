#include "sluice/status.h"

#include "core/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

/* Macros while the static analyzer runs (core/analyzer.h). */
#undef sl_error
#undef sl_error_context
#undef sli_no_memory
#undef sli_io_error

/* Belongs to the thread, as errno does: ranks and stages that are threads never share it. */
static _Thread_local char error_text[SLI_ERROR_BYTES];
static _Thread_local int error_rank = SLI_NO_RANK;

const char *sl_status_name(sl_status status)
{
    switch (status) {
    case SL_OK:
        return "ok";
    case SL_ERR_INVALID:
        return "invalid argument";
    case SL_ERR_MEMORY:
        return "out of memory";
    case SL_ERR_IO:
        return "input/output error";
    case SL_ERR_FORMAT:
        return "bad format";
    case SL_ERR_NOT_FOUND:
        return "not found";
    case SL_ERR_UNSUPPORTED:
        return "not supported";
    case SL_ERR_NUMERIC:
        return "not a finite number";
    case SL_ERR_CANCELLED:
        return "cancelled";
    case SL_ERR_INTERNAL:
        return "internal error";
    case SL_ERR_CONFLICT:
        return "conflict";
    }
    return "unknown status";
}

enum { ESCAPED_BYTES = 4 }; /* for each byte: \x1b */

/* Whether `bytes` of text are one character, and not a control character. */
static int is_shown(ucs4_t character, int bytes)
{
    return bytes > 0 && character >= 0x20 && (character < 0x7F || character > 0x9F);
}

/* Writes the text to `to` [bytes]. Control characters, and bytes that are no UTF-8, become `\x` and
 * two hexadecimal digits each; with `lines`, line ends stay. Text that does not fit ends before the
 * first character that does not. */
static void print_escaped(const char *text, bool lines, char *to, size_t bytes)
{
    const uint8_t *at = (const uint8_t *)text;
    size_t left = strlen(text), used = 0;
    while (left > 0) {
        ucs4_t character;
        int found = u8_mbtoucr(&character, at, left);
        int shown = is_shown(character, found) || (lines && *at == '\n');
        size_t taken = found > 0 ? (size_t)found : 1;
        if (used + (shown ? taken : ESCAPED_BYTES * taken) >= bytes)
            break;
        for (size_t i = 0; !shown && i < taken; i++)
            used += (size_t)snprintf(to + used, bytes - used, "\\x%02x", at[i]);
        if (shown) {
            memcpy(to + used, at, taken);
            used += taken;
        }
        at += taken;
        left -= taken;
    }
    to[used] = '\0';
}

char *sl_escape_text(const char *text, bool lines)
{
    size_t bytes = ESCAPED_BYTES * strlen(text) + 1;
    char *escaped = malloc(bytes);
    if (escaped)
        print_escaped(text, lines, escaped, bytes);
    return escaped;
}

/* Makes both texts, which are escaped already, this thread's error text. */
static void join_texts(const char *first, const char *second)
{
    char both[2 * SLI_ERROR_BYTES];
    snprintf(both, sizeof both, "%s%s", first, second);
    print_escaped(both, true, error_text, sizeof error_text);
}

const char *sl_error_text(void)
{
    return error_text;
}

sl_status sl_error(sl_status status, const char *format, ...)
{
    /* Arguments may point into the current text, so it is replaced only when all is printed. */
    char text[SLI_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    print_escaped(text, false, error_text, sizeof error_text);
    error_rank = SLI_NO_RANK;
    return status;
}

sl_status sl_error_context(sl_status status, const char *format, ...)
{
    if (status == SL_OK)
        return status;
    char text[SLI_ERROR_BYTES], context[SLI_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    print_escaped(text, false, context, sizeof context);
    join_texts(context, error_text);
    return status;
}

/* ---- For the library's own files -------------------------------------------------------- */

sl_status sli_error_save(sli_error_copy *copy, sl_status status)
{
    copy->status = status;
    copy->rank = status == SL_OK ? SLI_NO_RANK : error_rank;
    snprintf(copy->text, sizeof copy->text, "%s", status == SL_OK ? "" : error_text);
    return status;
}

sl_status sli_error_restore(const sli_error_copy *copy)
{
    if (copy->status != SL_OK) {
        print_escaped(copy->text, true, error_text, sizeof error_text);
        error_rank = copy->rank;
    }
    return copy->status;
}

sl_status sli_error_set_rank(sl_status status, int rank)
{
    error_rank = rank;
    return status;
}

int sli_error_rank(void)
{
    return error_rank;
}

sl_status sli_error_add_lines(sl_status status, const char *lines)
{
    join_texts(error_text, ":\n");
    join_texts(error_text, lines);
    size_t length = strlen(error_text);
    if (error_text[length - 1] == '\n')
        error_text[length - 1] = '\0';
    return status;
}

sl_status sli_io_error(const char *path, const char *what)
{
    bool missing = errno == ENOENT || errno == ENOTDIR;
    return sl_error(missing ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s: %s", path, what,
                    strerror(errno));
}

sl_status sli_no_memory(const char *who, const char *what, ...)
{
    char text[SLI_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(text, sizeof text, what, arguments);
    va_end(arguments);
    return sl_error(SL_ERR_MEMORY, "%s%sno memory for %s", who ? who : "", who ? ": " : "", text);
}

const char *sl_version(void)
{
    return SLUICE_VERSION;
}
