/* Where a listener can be called: its key, its host and its addresses, as one word of text for an
 * environment variable or for MPI to hand around. Who has it belongs to the job. */
#ifndef SLI_CORE_WIRE_ADDRESS_H
#define SLI_CORE_WIRE_ADDRESS_H

#include "core/host.h"
#include "sluice/status.h"

#include <netinet/in.h>
#include <stdbool.h>

enum {
    SLI_WIRE_KEY_BYTES = 32,
    SLI_WIRE_MAX_ADDRESSES = 16,
    SLI_WIRE_ADDRESS_BYTES = 1024 /* of the text */
};

typedef union sli_wire_socket_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} sli_wire_socket_address;

typedef struct sli_wire_address {
    unsigned char key[SLI_WIRE_KEY_BYTES]; /* secret: known to the job's processes alone */
    char host[SLI_HOST_BYTES];             /* the listener's sli_host_id */
    int count;
    sli_wire_socket_address at[SLI_WIRE_MAX_ADDRESSES]; /* with the port, all the same */
} sli_wire_address;

/* Writes "KEY,HOST,PORT,ADDRESS,…". */
void sli_wire_address_print(const sli_wire_address *address, char text[SLI_WIRE_ADDRESS_BYTES]);

/* Errors: SL_ERR_FORMAT. */
sl_status sli_wire_address_parse(const char *text, sli_wire_address *out);

/* Fills in the loopback address and, unless `this_host`, those of the other interfaces that are up,
 * all with `port`. Errors: SL_ERR_IO. */
sl_status sli_wire_address_find(sli_wire_address *address, int family, int port, bool this_host);

/* Listens on a free port, of the loopback interface alone for `this_host`, and fills in all but the
 * key. `*fd` never waits; -1, or open, after an error. Errors: SL_ERR_IO. */
sl_status sli_wire_address_open(bool this_host, sli_wire_address *out, int *fd);

/* Whether the address is worth calling from `host`: a loopback address leads to whatever listens on
 * the caller's own host. */
bool sli_wire_address_leads(const sli_wire_address *address, int index, const char *host);

/* The size of a socket address, for the system's calls. */
socklen_t sli_wire_socket_address_bytes(const sli_wire_socket_address *address);

/* "10.0.0.1"; `text` has room for INET6_ADDRSTRLEN bytes. */
const char *sli_wire_socket_address_text(const sli_wire_socket_address *address, char *text);

#endif
