#include "io/safetensors_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const ellipsis = "...";

const char *sli_safetensors_clean(const char *from, char *text, size_t bytes)
{
    size_t length = strlen(from);
    size_t room = bytes - 1;
    size_t kept = length <= room ? length : room - strlen(ellipsis);
    if (kept < length)
        while (kept > 0 && ((unsigned char)from[kept] & 0xC0) == 0x80)
            kept--; /* not inside a character of several bytes */
    for (size_t i = 0; i < kept; i++) {
        unsigned char byte = (unsigned char)from[i];
        text[i] = (char)(byte < 0x20 || byte == 0x7F ? '?' : byte);
    }
    snprintf(text + kept, bytes - kept, "%s", kept < length ? ellipsis : "");
    return text;
}

const char *sli_safetensors_quote(const char *name, char *text)
{
    text[0] = '"';
    sli_safetensors_clean(name, text + 1, SLI_QUOTE_BYTES - 2);
    size_t used = strlen(text);
    text[used] = '"';
    text[used + 1] = '\0';
    return text;
}

const char *sli_safetensors_sizes(int dims, const int64_t *size, char *text)
{
    enum { SHOWN = 6 }; /* six sizes of 19 digits fit */
    size_t used = (size_t)snprintf(text, SLI_SIZES_BYTES, "[");
    for (int i = 0; i < dims && i < SHOWN; i++)
        used += (size_t)snprintf(text + used, SLI_SIZES_BYTES - used, "%s%" PRId64, i ? ", " : "",
                                 size[i]);
    snprintf(text + used, SLI_SIZES_BYTES - used, "%s]", dims > SHOWN ? ", ..." : "");
    return text;
}
