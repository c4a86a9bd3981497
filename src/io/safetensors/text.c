#include "io/safetensors/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *sli_safetensors_quote(const char *name, char *text)
{
    enum { ROOM = SLI_QUOTE_BYTES - 6 }; /* beside quotes, "..." and the 0 */
    size_t length = strlen(name), kept = length <= ROOM ? length : ROOM;
    while (kept < length && kept > 0 && ((unsigned char)name[kept] & 0xC0) == 0x80)
        kept--; /* not inside a character of several bytes */
    snprintf(text, SLI_QUOTE_BYTES, "\"%.*s%s\"", (int)kept, name, kept < length ? "..." : "");
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
