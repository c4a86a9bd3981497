/* Which host this is. Two processes are on one host if the loopback interface leads from one to the
 * other: they run under one kernel, since its last start, and in one of its network namespaces. */
#ifndef SLI_CORE_HOST_H
#define SLI_CORE_HOST_H

#include <stdint.h>

enum { SLI_HOST_ID_BYTES = 33, SLI_HOST_NAME_BYTES = 64 };

/* The host's name for messages, "node1", padded with zeros; "unknown" if the system has none. */
void sli_host_name(char name[SLI_HOST_NAME_BYTES]);

/* 32 hexadecimal digits, the same for processes on one host alone. */
void sli_host_id(char id[SLI_HOST_ID_BYTES]);

/* 63 bits of the id. */
int64_t sli_host_number(void);

#endif
