#include "check.h"

#include <stdio.h>
#include <string.h>

void check_ok_at(sl_status status, const char *file, int line)
{
    if (status == SL_OK)
        return;
    print_error("%s: %s\n", sl_status_name(status), sl_error_text());
    _fail(file, line);
}

void check_error_at(sl_status status, sl_status code, const char *text, const char *file, int line)
{
    if (status == code && strstr(sl_error_text(), text))
        return;
    print_error("expected %s: \"%s\"\n     got %s: \"%s\"\n", sl_status_name(code), text,
                sl_status_name(status), status == SL_OK ? "" : sl_error_text());
    _fail(file, line);
}
