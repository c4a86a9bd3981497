/* Where the live page's server listens. */
#ifndef SLI_REPORT_SERVER_ADDRESS_H
#define SLI_REPORT_SERVER_ADDRESS_H

#include "sluice/status.h"

#include <stdbool.h>

enum { SLI_SERVER_ADDRESS_BYTES = 256 };

/* A socket that listens at "[ADDRESS:]PORT", where an address of IPv6 stands in brackets; without
 * an address at the loopback. `shown` [SLI_SERVER_ADDRESS_BYTES] is the address and the port that
 * it has in fact, as in a URL; every interface's address is named by the host's name. What the
 * system holds for a connection that does not read is bounded. Errors: SL_ERR_INVALID for a text
 * that is no address, SL_ERR_IO. */
sl_status sli_server_listen(const char *address, int *socket, char *shown, bool *is_loopback);

#endif
