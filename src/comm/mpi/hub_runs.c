/* Runs of ranks as the text of a message. */
#include "comm/mpi/hub.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool sli_hub_run_write(const sli_hub_run *run, sli_wire_message *message)
{
    size_t used = strlen(message->text), room = sizeof message->text - used;
    int length = snprintf(message->text + used, room, "%d %d %" PRIu64 " ", run->first, run->last,
                          run->sequence);
    if ((size_t)length < room)
        return true;
    message->text[used] = '\0';
    return false;
}

/* A number of digits alone, and the blank behind it. */
static bool read_number(const char **text, uint64_t most, uint64_t *out)
{
    *out = 0;
    if (**text < '0' || **text > '9')
        return false;
    for (; **text >= '0' && **text <= '9'; (*text)++) {
        uint64_t digit = (uint64_t)(**text - '0');
        if (digit > most || *out > (most - digit) / 10)
            return false;
        *out = 10 * *out + digit;
    }
    return *(*text)++ == ' ';
}

bool sli_hub_run_read(const char **text, int size, sli_hub_run *out)
{
    uint64_t first, last;
    const char *at = *text;
    if (size <= 0 || !read_number(&at, (uint64_t)size - 1, &first) ||
        !read_number(&at, (uint64_t)size - 1, &last) ||
        !read_number(&at, UINT64_MAX, &out->sequence) || first > last)
        return false;
    out->first = (int)first;
    out->last = (int)last;
    *text = at;
    return true;
}
