/* Any bytes as what comes over the wire: the body of a message, whose numbers must be within their
 * ranges where it is taken, and the address of a listener, which must survive being written again.
 */
#include "fuzz/fuzz.h"

#include "comm/mpi/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_message(const uint8_t *body, size_t bytes)
{
    enum { RANKS = 5, KINDS = SLI_HUB_KINDS };
    sli_wire_message message = {.kind = 0};
    if (bytes > SLI_WIRE_MOST_BYTES)
        return;
    memcpy(&message, body, bytes);
    if (!sli_wire_message_is_valid(&message, bytes, RANKS, KINDS))
        return;
    demand(message.kind >= 0 && message.kind < KINDS, "a kind that there is");
    demand(message.size >= 0 && message.size <= RANKS, "a group of ranks that there are");
    demand(message.rank >= 0 && message.rank < RANKS, "a rank that there is");
    demand(message.rank < message.size || message.rank == 0, "a rank of its group");
    demand(message.seconds >= 0, "a time");
    if (message.kind == SLI_HUB_BREAK && sli_hub_message_is_valid(&message, RANKS))
        demand(message.size > 0 && message.number < 0 && message.sequence <= 1,
               "an error about one rank of a group or none");
    demand(bytes == SLI_WIRE_FIXED_BYTES + strlen(message.text), "all of the text");
}

static void check_address(const char *text)
{
    sli_wire_address address, same;
    char once[SLI_WIRE_ADDRESS_BYTES], twice[SLI_WIRE_ADDRESS_BYTES];
    if (sli_wire_address_parse(text, &address) != SL_OK)
        return;
    demand(address.count > 0 && address.count <= SLI_WIRE_MAX_ADDRESSES, "a number of addresses");
    sli_wire_address_print(&address, once);
    demand(sli_wire_address_parse(once, &same) == SL_OK, "an address again");
    sli_wire_address_print(&same, twice);
    demand(strcmp(once, twice) == 0, "the same address again");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    unsigned char *body = malloc(bytes + 1); /* of its own, so that reading past its end is seen */
    demand(body != NULL, "memory");
    memcpy(body, data, bytes);
    check_message(body, bytes);
    body[bytes] = '\0';
    check_address((const char *)body);
    free(body);
    return 0;
}
