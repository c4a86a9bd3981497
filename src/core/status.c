#include "sluice/status.h"

#include "core/printable.h"

#include <stdarg.h>
#include <stdio.h>

/* Macros while the static analyzer runs. */
#undef sl_error
#undef sl_error_context

enum { ERROR_TEXT_BYTES = 1024 };

/* Belongs to the thread, as errno does: ranks and stages that are threads never share it. */
static _Thread_local char error_text[ERROR_TEXT_BYTES];

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
    }
    return "unknown status";
}

const char *sl_error_text(void)
{
    return error_text;
}

sl_status sl_error(sl_status status, const char *format, ...)
{
    /* Arguments may point into the current text, so it is replaced only when all is printed. */
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    sli_printable(text, "\n", error_text, sizeof error_text);
    return status;
}

sl_status sl_error_context(sl_status status, const char *format, ...)
{
    if (status == SL_OK)
        return status;
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length >= 0 && length < ERROR_TEXT_BYTES)
        snprintf(text + length, sizeof text - (size_t)length, "%s", error_text);
    sli_printable(text, "\n", error_text, sizeof error_text);
    return status;
}
