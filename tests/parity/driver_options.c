#include "driver_options.h"

#include "records.h"

#include <stdlib.h>
#include <string.h>

const char *option_text(char **arguments, const char *key)
{
    size_t length = strlen(key);
    for (; *arguments; arguments++)
        if (strncmp(*arguments, key, length) == 0 && (*arguments)[length] == '=')
            return *arguments + length + 1;
    records_check(sl_error(SL_ERR_INVALID, "option %s is missing", key));
    return NULL;
}

double option_number(char **arguments, const char *key)
{
    const char *text = option_text(arguments, key);
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end)
        records_check(sl_error(SL_ERR_INVALID, "option %s is not a number: %s", key, text));
    return value;
}

int64_t option_count(char **arguments, const char *key)
{
    return (int64_t)option_number(arguments, key);
}

bool option_is(char **arguments, const char *key, const char *value)
{
    return strcmp(option_text(arguments, key), value) == 0;
}
