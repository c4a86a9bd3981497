#include "core/printable.h"

#include <stdio.h>
#include <string.h>
#include <unistr.h>

/* Whether `bytes` of text are one character, and not a control character. */
static int is_shown(ucs4_t character, int bytes)
{
    return bytes > 0 && character >= 0x20 && (character < 0x7F || character > 0x9F);
}

size_t sli_printable(const char *text, const char *kept, char *to, size_t room)
{
    const uint8_t *at = (const uint8_t *)text;
    size_t left = strlen(text), used = 0;
    while (left > 0) {
        ucs4_t character;
        int bytes = u8_mbtoucr(&character, at, left);
        int shown = is_shown(character, bytes) || strchr(kept, *at);
        size_t taken = bytes > 0 ? (size_t)bytes : 1;
        if (used + (shown ? taken : SLI_PRINTABLE_GROWTH * taken) >= room)
            break;
        for (size_t i = 0; !shown && i < taken; i++)
            used += (size_t)snprintf(to + used, room - used, "\\x%02x", at[i]);
        if (shown) {
            memcpy(to + used, at, taken);
            used += taken;
        }
        at += taken;
        left -= taken;
    }
    to[used] = '\0';
    return used;
}
